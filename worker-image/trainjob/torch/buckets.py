"""DDP's gradient buckets in one order from the first step to the last, so that a resumed run adds in the same order.

Called by `prepare_model` under enable_reproducibility() alone.

DDP begins with one layout and, after the first backward pass, rebuilds its buckets in the order in which gradients
became ready. A ring all-reduce of 3 or more ranks adds each element in an order that depends on its place in the
bucket: a resumed DDP, which begins with the first layout again, differs in the last bits.

`find_unused_parameters=True` keeps DDP from rebuilding, at the price of a walk over the graph in each step. Instead the
one rebuild that DDP ever makes is made here, before the first step. A backward pass of zeros makes all gradients ready
in reverse order of the parameters, about that of a real pass, so that communication still overlaps with it. It costs
one all-reduce of the gradients' size at the start and nothing per step. Where gradients of zeros must not be seen (a
static graph would record the pass, sparse gradients and gradient hooks expect others), the parameters' own order is
taken, in which DDP begins to reduce only near the end of the backward pass.
"""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch.nn.parallel import DistributedDataParallel

from trainjob.torch.replicated import Replicated

_NO_ZEROS = ("static_graph", "mixed_precision", "delay_all_reduce_named_params")


def with_fixed_order(model: torch.nn.Module, kwargs: Dict[str, Any]) -> DistributedDataParallel:
    """`model` in a DDP whose buckets never change their order."""
    wrapped = Replicated(model, **kwargs)
    if wrapped.find_unused_parameters and not wrapped.static_graph:
        return wrapped  # never rebuilt
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    if any(kwargs.get(name) for name in _NO_ZEROS) or _has_sparse_gradients(model) or _has_gradient_hooks(model):
        wrapped.reducer._push_all_rebuilt_params()
    else:
        _pass_zeros(wrapped)
    if not wrapped.reducer._rebuild_buckets():
        raise RuntimeError(
            "enable_reproducibility(): this version of torch does not let DDP's buckets be fixed. "
            "prepare_model(..., parallel_strategy_kwargs={'find_unused_parameters': True}) does the same more slowly."
        )
    for parameter, gradient in gradients:
        parameter.grad = gradient
    return wrapped


def _pass_zeros(wrapped: DistributedDataParallel) -> None:
    parameters = _reduced_parameters(wrapped)
    with torch.enable_grad():
        wrapped.reducer.prepare_for_backward([])
        # Autograd runs the newest node first: the last parameter's gradient is ready first, on every rank alike.
        terms = [(parameter * 0).sum() for parameter in parameters]
        total = torch.stack([term.to(device=terms[0].device, dtype=torch.float32) for term in terms]).sum()
        total.backward()  # type: ignore[no-untyped-call]


def _reduced_parameters(wrapped: DistributedDataParallel) -> List[torch.nn.Parameter]:
    ignored = wrapped.parameters_to_ignore
    return [
        parameter
        for name, parameter in wrapped.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    ]


def _has_sparse_gradients(model: torch.nn.Module) -> bool:
    return any(
        isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse for module in model.modules()
    )


def _has_gradient_hooks(model: torch.nn.Module) -> bool:
    # Someone acts on each gradient (an optimizer inside the backward pass): ours of zeros must not reach it.
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in model.parameters())
