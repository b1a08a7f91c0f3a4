from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trainjob
from cluster.ports import free_port
from support.fake_agent import FakeAgent
from support.fork_ranks import run_forked
from trainjob.torch.device import get_devices

BeRank = Callable[[int, int], None]


def test_two_ranks(tmp_path: Path) -> None:
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TRAINJOB_BACKEND": "gloo",
        "TRAINJOB_RENDEZVOUS_TIMEOUT_SECONDS": "77",
    }
    with FakeAgent(tmp_path / "job", 2) as agent:
        ended = run_forked(
            [{**agent.environ(rank), **group} for rank in range(2)], Path(__file__).with_name("loop_model.py"), tmp_path
        )
    assert ended.code == 0, ended.err
    assert ended.out.count("all fine") == 2


def test_one_rank_is_not_wrapped(be_rank: BeRank) -> None:
    be_rank(0, 1)
    model = torch.nn.Linear(2, 2)
    assert trainjob.prepare_model(model) is model
    assert trainjob.prepare_model(model, move_to_device="meta", parallel_strategy=None).weight.device.type == "meta"


def test_what_is_no_module_is_named(be_rank: BeRank) -> None:
    be_rank(0, 1)
    with pytest.raises(TypeError, match=r"got the class Linear: write Linear\(\.\.\.\)"):
        trainjob.prepare_model(torch.nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"needs a torch.nn.Module, and got 3"):
        trainjob.prepare_model(3)  # type: ignore[arg-type]


def test_one_rank_loads_what_ddp_named(be_rank: BeRank) -> None:
    be_rank(0, 1)
    model = trainjob.prepare_model(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    ones = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict({f"module.{name}": value for name, value in ones.items()})
    assert all(bool(value.all()) for value in model.state_dict().values())
    model.load_state_dict(ones)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.weight"'):
        model.load_state_dict({"module.other": torch.ones(1)})
    body = pickle.dumps(model)
    assert b"trainjob" not in body, "who reads the model need not have this library"
    pickle.loads(body).load_state_dict(ones)


def test_another_strategy_is_refused(be_rank: BeRank) -> None:
    be_rank(0, 1)
    with pytest.raises(ValueError, match="'deepspeed': one of 'ddp', 'fsdp'"):
        trainjob.prepare_model(torch.nn.Linear(1, 1), parallel_strategy="deepspeed")


def test_a_torch_that_would_add_up_what_is_to_be_averaged_shards_nothing_on_cpu(
    be_rank: BeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    be_rank(0, 4)
    model = torch.nn.Linear(1, 1)
    told = r"needs torch 2\.9 or later.*2\.8\.0.*be 4 times too large.*\"ddp\""
    with pytest.raises(trainjob.TrainJobError, match=told):
        trainjob.prepare_model(model, move_to_device="cpu", parallel_strategy="fsdp")
    assert type(model.weight) is torch.nn.Parameter


@pytest.mark.parametrize(
    ("visible", "local_rank", "local_world_size", "mine"),
    [
        (0, 1, 2, ["cpu"]),
        (4, 1, 2, ["cuda:2", "cuda:3"]),
        (2, 1, 2, ["cuda:1"]),
        (1, 3, 4, ["cuda:0"]),
        (4, 0, 1, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
    ],
)
def test_the_visible_gpus_are_split(
    be_rank: BeRank,
    monkeypatch: pytest.MonkeyPatch,
    visible: int,
    local_rank: int,
    local_world_size: int,
    mine: list[str],
) -> None:
    be_rank(local_rank, max(local_world_size, 1))
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_world_size))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert [str(device) for device in get_devices()] == mine
    assert str(trainjob.get_device()) == mine[0]
