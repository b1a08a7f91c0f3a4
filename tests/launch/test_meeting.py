"""Ranks of a trainer's function begin once all have the process group: one that returns at once breaks nobody's start."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed

from trainjob.launch.handover import frameworks
from trainjob.launch.handover.payload import TORCH, Header

MEETS = "TORCH_DIST_INIT_BARRIER"


@pytest.mark.parametrize("before", [None, "0"])
def test_the_group_waits_for_all_and_groups_of_the_users_own_are_as_they_set_them(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    seen: list[str | None] = []

    def init(*_: Any, **__: Any) -> None:
        seen.append(os.environ.get(MEETS))

    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    if before is not None:
        monkeypatch.setenv(MEETS, before)
    else:
        monkeypatch.delenv(MEETS, raising=False)
    frameworks.start(Header(framework=TORCH))
    assert (seen, os.environ.get(MEETS)) == (["1"], before)


def test_torch_knows_that_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEETS, "1")
    assert torch.distributed.distributed_c10d._is_barrier_after_init() == 1
