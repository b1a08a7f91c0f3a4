"""Processes that SIGKILL cannot end: said within bounds, and given up. In virtual time; the kernel's part is played by
an end that never comes.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support import virtual_time
from support.background import no_fault
from trainjob.agent.background import Background
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.ranks import STUCK_S, RankGroup, Stuck
from trainjob_api import contract


def group(said: list[str]) -> tuple[RankGroup, Rank]:
    console: Any = SimpleNamespace(say=said.append)
    reaper: Any = None
    made = RankGroup(reaper, console, True, lambda rank: None, Background(no_fault))
    made.warn = lambda text: said.append(f"warning: {text}")
    rank = Rank(0, 0)
    # Reaped, and yet its group does not vanish: no signal is sent to a number that may be another's by now.
    rank.pid, rank.ended_at, rank.gone = 4711, 1.0, asyncio.get_running_loop().create_future()
    made.ranks = [rank]
    return made, rank


def test_it_is_reported_and_then_given_up() -> None:
    async def story() -> None:
        said: list[str] = []
        made, _ = group(said)
        with pytest.raises(Stuck, match="SIGKILL does not end the ranks' processes 4711"):
            await made.stop(contract.END_STOPPED, 0)
        assert asyncio.get_running_loop().time() == 2 * STUCK_S
        assert any(text.startswith("warning: ") and "its pod is replaced" in text for text in said)

    virtual_time.run_virtual(story())


def test_one_that_ends_late_is_no_fault() -> None:
    async def story() -> None:
        said: list[str] = []
        made, rank = group(said)
        assert rank.gone is not None
        asyncio.get_running_loop().call_later(STUCK_S + 1, rank.gone.set_result, None)
        await made.stop(contract.END_STOPPED, 0)
        assert len(said) == 2

    virtual_time.run_virtual(story())
