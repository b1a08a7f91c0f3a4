"""One rank of many in this process: torch's own fake process group, and everything that is set per process put back."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import pytest

from trainjob.session import calls, link, rank_state

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "torchside" in item.path.parts:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clean() -> Iterator[None]:
    """The process as a fresh rank finds it, before and after."""
    import torch.distributed as dist

    from trainjob.torch import reproducible

    generators = random.getstate(), torch.get_rng_state()
    cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.use_deterministic_algorithms(False)
    reproducible.reset()
    rank_state.clear()
    link.disconnect()
    calls.reset()
    random.setstate(generators[0])
    torch.set_rng_state(generators[1])
    if cublas is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.fixture
def be_rank(clean: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """`be_rank(rank, world_size)`: from now on this process is that rank, with no state of any other."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trainjob.torch import reproducible

    def become(rank: int, world_size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        reproducible.reset()
        rank_state.clear()
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    return become
