"""What two looks at all ranks, some seconds apart, prove long before the limit: that they can only wait for each other.
Pure.

Asked by `watch`. Nothing is proven while one rank does anything: it uses processor time, reads or writes, is somewhere
else than before, or waits for what is known to take its time (a checkpoint, a compile, an import).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from trainjob.agent.hangs import grouping
from trainjob.agent.hangs.inquiry import Answers
from trainjob.agent.processes.vitals import NOT_QUIET

APART_S = 5.0
"""Between two looks, at least."""
QUIET_S = 3.0
"""As an agent sees it: each needs its time for the stacks."""
_TAKES_ITS_TIME = re.compile(
    r"/torch/(_dynamo|_inductor|_functorch|export|onnx|utils/cpp_extension|distributed/(checkpoint|elastic|rpc|autograd))\b"
    r"|/triton/|^<frozen importlib|/subprocess\.py$"
    r"|/trainjob/(checkpoint|agent)/|/trainjob/torch/shard"
    r"|/trainjob/session/(checkpoint|contents|own_folder|elsewhere|reported|apart|filesystems|dict_file|rank_state)\.py$"
)
_IS_SERVED = "get_checkpoint"
"""Our own call that waits for the agent, not for other ranks: it may bring a checkpoint."""


class Proof(NamedTuple):
    """What is seen."""

    asleep: Tuple[int, ...]
    """Ranks that wait for something else than the others do; empty: all wait in collectives."""
    rests: bool = True
    """No thread or process of any rank does anything either: none works for its main thread, and none sleeps."""
    sleeps: bool = False
    """One that waits for something of its own has asked for a sleep so long: it ends by itself some time."""


def proof(before: Answers, now: Answers) -> Optional[Proof]:
    """None: ranks may be at work."""
    asleep: List[int] = []
    waiting, rests, sleeps = 0, True, False
    for rank, text in now.stacks.items():
        frames = grouping.main_thread(text)
        if not frames or grouping.is_cut(text):
            return None
        if any(_takes_its_time(frame) for frame in grouping.called(frames)):
            return None
        if grouping.key(before.stacks.get(rank, "")) != grouping.key(text):
            return None
        quiet = now.quiet.get(rank, NOT_QUIET)
        rests = rests and quiet.all_s >= QUIET_S and not quiet.sleeps
        if grouping.waits(text):
            waiting += 1
            if quiet.main_s < QUIET_S:
                return None
        else:
            asleep.append(rank)
            sleeps = sleeps or quiet.sleeps
            if quiet.all_s < QUIET_S:
                return None
    return Proof(tuple(asleep), rests, sleeps) if waiting > 0 and len(now.stacks) > 1 else None


def _takes_its_time(frame: grouping.Frame) -> bool:
    return _TAKES_ITS_TIME.search(frame.file) is not None or (
        frame.function == _IS_SERVED and frame.file.endswith("/trainjob/session/calls.py")
    )
