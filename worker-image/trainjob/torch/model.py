"""`prepare_model`: the model on this rank's device, wrapped for data parallel training.

Called by user code once per model, before the optimizer is made. Fixes DDP's bucket order when enable_reproducibility()
was called (see `buckets`), and touches nothing else of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Set, Union

from trainjob.session.arguments import told
from trainjob.session.errors import TrainJobError
from trainjob.torch import reproducible
from trainjob.torch.device import get_device
from trainjob.torch.group import init_process_group
from trainjob.torch.place import place

if TYPE_CHECKING:
    import torch

STRATEGIES = ("ddp", "fsdp")
AVERAGES_SHARDS = (2, 9)
"""The first torch whose gloo does: 2.7.1 and 2.8.0 do not, 2.9.1 does."""


@told
def prepare_model(
    model: torch.nn.Module,
    move_to_device: Union[bool, torch.device, str] = True,
    parallel_strategy: Optional[str] = "ddp",
    parallel_strategy_kwargs: Optional[Mapping[str, Any]] = None,
) -> torch.nn.Module:
    """Move `model` to this rank's device and make it parallel. `move_to_device`: another device, or False to leave it.

    "ddp" returns it in DistributedDataParallel (as it is when the job has one rank). Its `state_dict()` has the model's
    own names, without DDP's `module.`, so that it loads at any number of ranks and without this library;
    `load_state_dict()` takes both; `model.module` is the model inside. "fsdp" shards it in place with
    FSDP2's `fully_shard`: each member of its outermost ModuleList/Sequential containers, then the root; None does
    neither. `parallel_strategy_kwargs` go to DistributedDataParallel or fully_shard and win over what is chosen here.
    The process group is brought up as spec.rendezvous says, unless it is up. Raises ValueError for another strategy,
    TypeError for what is no module, TrainJobError for "fsdp" on CPU with a torch whose gloo does not average shards.

    ```python
    model = trainjob.prepare_model(Net())
    optimizer = torch.optim.AdamW(model.parameters())  # after it: the parameters may have moved to a GPU
    ```
    """
    import torch

    if parallel_strategy not in (None, *STRATEGIES):
        raise ValueError(
            f"parallel_strategy={parallel_strategy!r}: one of {', '.join(map(repr, STRATEGIES))}, or None for no "
            "wrapping"
        )
    if not isinstance(model, torch.nn.Module):
        wanted = f"the class {model.__name__}: write {model.__name__}(...)" if isinstance(model, type) else repr(model)
        raise TypeError(f"prepare_model needs a torch.nn.Module, and got {wanted}")
    device = get_device() if isinstance(move_to_device, bool) else torch.device(move_to_device)
    if device.type == "cuda":
        # Collectives and `.cuda()` of user code go to the current device: without this, every rank's to GPU 0.
        torch.cuda.set_device(device)
    if move_to_device is not False:
        model = model.to(device)
    reproducible.go_apart()
    kwargs = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        if place().world_size > 1:
            _refuse_a_torch_that_sums(device)
        init_process_group()
        return _shard(model, device, kwargs)
    if parallel_strategy == "ddp" and place().world_size > 1:
        init_process_group()
        return _replicate(model, device, kwargs)
    if parallel_strategy == "ddp":
        from trainjob.torch.replicated import TakesPrefixed

        model.register_load_state_dict_pre_hook(TakesPrefixed())  # type: ignore[no-untyped-call]
    return model


def _replicate(model: torch.nn.Module, device: torch.device, kwargs: Dict[str, Any]) -> torch.nn.Module:
    from trainjob.torch.replicated import Replicated

    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # nothing to average; DDP refuses such a model
    if device.type == "cuda":
        kwargs.setdefault("device_ids", [device])
        kwargs.setdefault("output_device", device)
    if reproducible.seed() is not None:
        from trainjob.torch import buckets

        return buckets.with_fixed_order(model, kwargs)
    return Replicated(model, **kwargs)


def _shard(model: torch.nn.Module, device: torch.device, kwargs: Dict[str, Any]) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if "mesh" not in kwargs:
        kwargs["mesh"] = init_device_mesh(device.type, (place().world_size,))
    for block in _blocks(model):
        fully_shard(block, **kwargs)
    fully_shard(model, **kwargs)
    return model


def _refuse_a_torch_that_sums(device: torch.device) -> None:
    """Asked for the mean of shards, gloo of an older torch gives their sum without a word."""
    import torch

    if device.type == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) < AVERAGES_SHARDS:
        raise TrainJobError(
            f'parallel_strategy="fsdp" on CPU needs torch {".".join(map(str, AVERAGES_SHARDS))} or later. This is '
            f"{torch.__version__}, whose gloo adds gradients up where FSDP asks for their mean: each would be "
            f'{place().world_size} times too large. Install a newer torch, or use "ddp".'
        )


def _blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Members of the outermost containers that have parameters of their own: the layers whose forward runs as one.

    Other children stay with the root: a parent may use their parameters without calling them (tied embeddings,
    MultiheadAttention's projection), which a shard of their own would break.
    """
    import torch

    shared = _shared_parameters(model)

    def members(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        inside = isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential))
        for child in module.children():
            container = isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
            if not inside or container:
                yield from members(child)
            elif any(True for _ in child.parameters()) and not any(
                id(parameter) in shared for parameter in child.parameters()
            ):
                yield child

    yield from members(model)


def _shared_parameters(model: torch.nn.Module) -> Set[int]:
    """Parameters that more than one module holds."""
    seen: Set[int] = set()
    twice: Set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (twice if id(parameter) in seen else seen).add(id(parameter))
    return twice
