"""What prepare_model makes of models, on two gloo ranks; run by test_model.py as a rank's script."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainjob
from support.torch_release import RELEASE
from trainjob.torch import reproducible
from trainjob.torch.model import AVERAGES_SHARDS


class Tied(nn.Module):
    """Blocks in a ModuleList, nested Sequentials, and an embedding whose weight the head uses directly."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def ddp_is_used_and_its_arguments_win() -> None:
    model = trainjob.prepare_model(nn.Linear(3, 2), parallel_strategy_kwargs={"find_unused_parameters": True})
    assert isinstance(model, DistributedDataParallel) and model.find_unused_parameters
    frozen = nn.Linear(3, 2).requires_grad_(False)
    assert trainjob.prepare_model(frozen) is frozen
    plain = nn.Linear(3, 2)
    assert trainjob.prepare_model(plain, parallel_strategy=None) is plain


class Deep(nn.Module):
    """A part called `module`, and one with a version of its own in the state's metadata."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.module(x))
        return out


class Pair(nn.Module):
    """A wrapped model as a part of another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.left = inner


def names_are_the_models_own() -> None:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    torch.manual_seed(dist.get_rank())
    model: Any = trainjob.prepare_model(Deep())
    alone = Deep()
    names = list(alone.state_dict())
    state = model.state_dict()
    assert list(state) == names == list(model.module.state_dict())
    assert list(model.state_dict(prefix="x.")) == [f"x.{name}" for name in names]
    alone.load_state_dict(state)
    theirs = DistributedDataParallel(Deep())
    for given, wanted in (
        (alone.state_dict(), alone),
        (theirs.state_dict(), theirs.module),
        (dict(alone.state_dict()), alone),
    ):
        model.load_state_dict(given)
        for name, value in wanted.state_dict().items():
            torch.testing.assert_close(model.module.state_dict()[name], value)
    # torch's own tools for state dicts, which walk by the prefixes.
    found = get_model_state_dict(model)
    assert list(found) == names
    set_model_state_dict(model, {name: torch.zeros_like(value) for name, value in found.items()})
    assert not any(value.any() for value in model.state_dict().values())
    pair = Pair(model)
    assert list(pair.state_dict()) == [f"left.{name}" for name in names]
    pair.load_state_dict({f"left.{name}": value for name, value in alone.state_dict().items()})
    pair.load_state_dict({f"left.{name}": value for name, value in theirs.state_dict().items()})
    torch.testing.assert_close(model.module.norm.weight, theirs.module.norm.weight)
    twin = copy.deepcopy(model)
    assert list(twin.state_dict()) == names and isinstance(twin, DistributedDataParallel)
    back = pickle.loads(pickle.dumps(model))
    assert type(back) is DistributedDataParallel
    try:
        model.load_state_dict({"nothing": torch.ones(1)})
    except RuntimeError as error:
        assert 'Missing key(s) in state_dict: "module.weight", "module.bias", "norm.weight"' in str(error), error
    else:
        raise AssertionError("strict")


def fsdp_shards_blocks_and_root_and_trains_as_one_rank_would() -> None:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    if RELEASE < AVERAGES_SHARDS:
        return  # it is refused
    torch.manual_seed(0)
    model: Any = trainjob.prepare_model(
        Tied(), parallel_strategy="fsdp", parallel_strategy_kwargs={"reshard_after_forward": False}
    )
    torch.manual_seed(0)
    alone = Tied()
    sharded = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    assert sharded == ["", "blocks.0", "blocks.1"], sharded
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    batches = torch.arange(8).reshape(2, 4)
    model(batches[dist.get_rank()]).square().mean().backward()
    alone(batches).square().mean().backward()
    for ours, one in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), one.grad)


def buckets_are_fixed_before_the_first_step(**kwargs: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    net[0].weight.grad = torch.ones(5, 3)
    model: Any = trainjob.prepare_model(net, parallel_strategy_kwargs=kwargs)
    assert torch.equal(net[0].weight.grad, torch.ones(5, 3)) and net[2].weight.grad is None
    net[0].weight.grad = None
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    inputs = torch.randn(2, 4, 3)
    for _ in range(3):
        assert not model.reducer._rebuild_buckets(), "DDP wants to rebuild"
        model(inputs[dist.get_rank()]).square().mean().backward()
        alone(inputs).square().mean().backward()
        for ours, one in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, one.grad)
    assert not model.reducer._rebuild_buckets()
    assert model.static_graph is bool(kwargs.get("static_graph"))


def gradients_of_zeros_reach_nobody() -> None:
    sparse: Any = trainjob.prepare_model(nn.Embedding(8, 4, sparse=True))
    for _ in range(2):
        sparse(torch.tensor([1, 2])).sum().backward()
        assert not sparse.reducer._rebuild_buckets()
    assert sparse.module.weight.grad.is_sparse and not sparse.find_unused_parameters
    hooked = nn.Linear(3, 2)
    calls: list[torch.Tensor] = []
    hooked.weight.register_post_accumulate_grad_hook(calls.append)
    model: Any = trainjob.prepare_model(hooked)
    assert calls == []
    model(torch.ones(1, 3)).sum().backward()
    assert len(calls) == 1 and not model.reducer._rebuild_buckets()


def the_process_group_comes_up_as_the_spec_says() -> None:
    address = os.environ.pop("MASTER_ADDR")
    try:
        trainjob.prepare_model(nn.Linear(1, 1))
    except trainjob.TrainJobError as error:
        assert "MASTER_ADDR not set" in str(error) and "tj run" in str(error)
    else:
        raise AssertionError("without an address it must say so")
    os.environ["MASTER_ADDR"] = address
    trainjob.prepare_model(nn.Linear(1, 1))
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (
        trainjob.get_context().get_world_rank(),
        2,
        "gloo",
    )
    group = dist.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() == 77
    trainjob.init_process_group("nccl")  # it is up: nothing happens
    assert dist.get_backend() == "gloo"


def main() -> None:
    the_process_group_comes_up_as_the_spec_says()
    assert trainjob.get_device() == torch.device("cpu") or torch.cuda.is_available()
    ddp_is_used_and_its_arguments_win()
    names_are_the_models_own()
    fsdp_shards_blocks_and_root_and_trains_as_one_rank_would()
    trainjob.enable_reproducibility()
    assert reproducible.seed() == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DDP: unused parameters were looked for and none was found
        for kwargs in (
            {},
            {"static_graph": True},
            {"gradient_as_bucket_view": True},
            {"bucket_cap_mb": 0.00001},
            {"find_unused_parameters": True},
        ):
            buckets_are_fixed_before_the_first_step(**kwargs)
        gradients_of_zeros_reach_nobody()
    print("all fine", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
