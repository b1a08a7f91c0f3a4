"""The rank that broke shows its traceback; a rank that only lost it says so in one line. Nothing else is held back."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.background import no_fault
from support.bare_site import bare_site
from support.patience import HANG_S
from trainjob.agent.attempts.breaks import Breaks
from trainjob.agent.attempts.leader import Leader
from trainjob.agent.background import Background
from trainjob.agent.processes import ranks
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.quiet import HELD_LINES, HOLD_S, LOST_S, Quiet
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.wire.from_leader import FROM_LEADER, Broke, Joined, Resume
from trainjob.agent.wire.from_member import Ended, Join
from trainjob_api import contract

TRACE = [
    b"[rank0]: Traceback (most recent call last):",
    b'[rank0]:   File "x.py", line 1',
    b"[rank0]: RuntimeError: peer",
]
STOPPED = [b"stopped: it lost rank 1"]


def test_a_victims_traceback_becomes_one_line_in_whatever_order_it_is_told() -> None:
    quiet = Quiet()
    assert quiet.take([b"step 1", *TRACE]) == [b"step 1"]
    assert quiet.told(True) == [] and quiet.lost("rank 1") == STOPPED
    assert quiet.take([b"more of it"]) == [] and quiet.ended() == []
    quiet = Quiet()
    assert (quiet.lost("rank 1"), quiet.told(True)) == ([], [])
    assert quiet.take(TRACE[:1]) == STOPPED


def test_an_exception_of_its_own_is_shown_at_once() -> None:
    quiet = Quiet()
    assert quiet.take(TRACE) == [] and quiet.lost("rank 1") == []
    assert quiet.told(False) == TRACE
    quiet = Quiet()
    assert quiet.told(False) == [] and quiet.take(TRACE) == TRACE


def test_a_lost_peer_that_nobody_explains_is_shown() -> None:
    quiet = Quiet()
    quiet.take(TRACE)
    quiet.told(True)
    assert (quiet.due(HOLD_S), quiet.ended()) == ([], [])
    assert quiet.due(LOST_S) == TRACE and not quiet.holds


def test_a_traceback_that_ends_nothing_is_shown_after_a_moment_or_when_it_is_long() -> None:
    quiet = Quiet()
    quiet.take(TRACE)
    assert quiet.take([b"step 2"]) == []
    assert quiet.due(HOLD_S) == [*TRACE, b"step 2"]
    quiet.take(TRACE)
    assert len(quiet.take([b"x"] * HELD_LINES)) == HELD_LINES + len(TRACE)
    assert quiet.take([b"step 3"]) == [b"step 3"]


def test_what_is_held_at_the_end_of_a_rank_that_told_nothing_is_shown() -> None:
    quiet = Quiet()
    quiet.take(TRACE)
    assert quiet.ended() == TRACE


class Link:
    """A member's connection: the ranks that it is told of."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self) -> None:
        return

    @property
    def broke(self) -> list[int]:
        frames = {FROM_LEADER.encode(Broke(rank)): rank for rank in range(64)}
        return [frames[frame] for frame in self.frames if frame in frames]


def test_however_many_ranks_break_the_members_are_told_of_two_and_again_after_a_lost_connection() -> None:
    async def scene() -> tuple[list[int], list[int], list[int]]:
        own: list[Any] = []
        made = Leader(bare_site(None, None), 1, 64, 1, own.append)
        made._begin(Joined(1, False, (), "127.0.0.1", 1, None, Resume(None, {}, ())))
        first: Any = Link()
        made.attach(3, first)
        for index in (*range(7, 64), 6, 5):
            for kind in (None, contract.END_EXCEPTION):  # it raises, and then it ends
                made.take(index, Ended(index, kind, "raised", communication=index == 7))
        second: Any = Link()
        made.attach(3, second)
        made.take(3, Join("127.0.0.1:3", started=True))
        made.close()
        return [word.rank for word in own if isinstance(word, Broke)], first.broke, second.broke

    # One is too few: it is no news to itself, and to all others the first is enough.
    assert asyncio.run(scene()) == ([8, 9], [8, 9], [8, 9])


@pytest.mark.parametrize("early_last", [False, True])
def test_who_ended_well_is_whom_the_others_lost_once_all_have_ended_and_none_has_another_cause(
    early_last: bool,
) -> None:
    left = Ended(1, contract.END_OK, "ended with 0")
    breaks = Breaks(3)
    for end in (*(() if early_last else (left,)), *_victim(0), *(_victim(2) if early_last else _victim(2)[:1])):
        assert breaks.ended(end) is None  # another one's word may still come
    assert breaks.ended(left if early_last else _victim(2)[1]) == 1 and breaks.told == [1]


def test_who_ended_well_is_not_whom_the_others_lost_if_one_of_them_broke() -> None:
    breaks = Breaks(3)
    ends = (Ended(1, contract.END_OK, "ended with 0"), *_victim(0), Ended(2, contract.END_SIGNAL, "was killed"))
    assert [breaks.ended(end) for end in ends] == [None, None, None, 2]


def test_ranks_that_all_end_well_broke_nothing() -> None:
    breaks = Breaks(2)
    assert [breaks.ended(Ended(rank, contract.END_OK, "ended with 0")) for rank in (0, 1)] == [None, None]


def _victim(rank: int) -> tuple[Ended, Ended]:
    """It says that it lost a peer, and then it ends."""
    return Ended(rank, None, "raised", communication=True), Ended(
        rank, contract.END_EXCEPTION, "raised", communication=True
    )


def test_what_a_rank_says_of_its_end_may_come_after_all_that_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two go different ways, and a busy machine is late on either."""
    monkeypatch.setattr(ranks, "LAST_WORDS_S", HANG_S)

    async def scene() -> None:
        reaper, (shown, showing) = Reaper(asyncio.get_running_loop()), os.pipe()
        console = Console(showing)
        group = ranks.RankGroup(reaper, console, True, lambda rank: None, Background(no_fault))
        words: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.last_words = lambda rank: words
        rank, log = Rank(0, 0), str(tmp_path / "log")
        group.ranks = [rank]
        text = "\n".join(line.decode() for line in TRACE)
        group.start(rank, [sys.executable, "-c", f"print({text!r})"], dict(os.environ), log, "r00 | ")
        assert rank.output is not None
        until = time.monotonic() + HANG_S
        while rank.output._fd >= 0 and time.monotonic() < until:  # noqa: ASYNC110 (a thread reads to its end)
            await asyncio.sleep(0.01)
        rank.output.told(True)
        rank.output.lost("rank 1")
        words.set_result(None)
        await group.wait(HANG_S)
        console.reader.close(HANG_S)
        console.close(HANG_S)
        os.close(showing)
        said = os.read(shown, 1 << 16)
        os.close(shown)
        assert said == b"r00 | " + STOPPED[0] + b"\n"

    asyncio.run(scene())


VICTIM = """
import os, sys, time, trainjob
rank = trainjob.get_context().get_world_rank()
if rank == 1:
    while not os.path.exists("go"):
        time.sleep(0.01)
    WHAT
while True:
    trainjob.barrier()
    if rank == 0:
        trainjob.log({"a": 1})
    time.sleep(0.01)
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_of_two_ranks_the_one_that_raised_is_read_first(tmp_path: Path, verbose: bool) -> None:
    env = {"TRAINJOB_VERBOSE": "1"} if verbose else {}
    script = VICTIM.replace("WHAT", "raise ValueError('the cause')")
    with Rig(tmp_path, script=script, env=env) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1))
        (rig.work / "go").touch()
        rig.wait(lambda: rig.ended(0, 1))
        rig.wait_text(1, "ValueError: the cause")
        assert "Traceback" in rig.text(1)
        if verbose:
            rig.wait_text(0, "RankGoneError")
        else:
            rig.wait_text(0, "r00 | stopped: it lost rank 1")
            assert "Traceback" not in rig.text(0)
        log = (rig.work_dir(0) / "logs" / "rank-0.log").read_text()
        assert "Traceback" in log and "RankGoneError" in log


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_a_rank_that_is_killed_or_leaves_early_has_quiet_victims(tmp_path: Path, end: str) -> None:
    with Rig(tmp_path, script=VICTIM.replace("WHAT", end)) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1))
        (rig.work / "go").touch()
        rig.wait_text(0, "r00 | stopped: it lost rank 1")
        rig.wait(lambda: rig.ended(0, 1))
        assert "Traceback" not in rig.text(0)
