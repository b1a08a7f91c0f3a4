"""Where a process meets the moments of a plan: it asks the hand (`hand.py`), and does what it is told to do to itself.

A loop calls `point`. Agents and storage children are armed at their start (`at_start/sitecustomize.py`): the call of `os`
that does what a moment is named for asks first. A process that the plan does not concern asks nothing.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from support.faults.plan import STAGING, UPLOAD, Faults, What

PLAN, PORT = "TRAINJOB_TEST_FAULTS", "TRAINJOB_TEST_FAULTS_PORT"
NOW = signal.SIGRTMIN + 9
"""From the hand to a rank: ask again, and do it."""
GO = "go"
STRUCK_FROM_OUTSIDE = "now"
"""The moment of a rank that was sent NOW."""
STEP_WHILE_STOPPING_S = 2.0
"""Less than the grace that ranks have, so that a loop that only looks at a flag ends by itself."""
_DEADLINE_S = 60.0
_ANSWERED: list[bool] = []
"""That the handler of NOW is set, in this process."""


class Held(NamedTuple):
    """The call that does what a moment is named for."""

    at: str
    module: str
    """Of the process, as on its command line."""
    call: str
    path: re.Pattern[str]


HELD = (
    Held(STAGING, "trainjob.launch.local.pod", "rename", re.compile(r"/\d+-(\d+)-(\d+)/files/")),
    Held(UPLOAD, "trainjob.checkpoint.storage_child.child", "link", re.compile(r"/\d+-(\d+)-(\d+)/[^./]+$")),
)
"""The groups are the attempt and the index; loops with such faults save at each step, so that index n is step n - 1."""


def point(at: str, step: int | None = None) -> None:
    """In a training loop: whatever is planned for this rank and moment happens now."""
    plan = _plan(os.environ.get(PLAN, "[]"))
    if not plan.planned:
        return
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TRAINJOB_ATTEMPT"])
    if plan.done_within(rank) and not _ANSWERED and threading.current_thread() is threading.main_thread():
        _ANSWERED.append(True)
        signal.signal(NOW, lambda *_: _do(_asked(STRUCK_FROM_OUTSIDE, None, rank, attempt)))
    if plan.meets(at, step, attempt):
        _do(_asked(at, step, rank, attempt))


@functools.lru_cache
def _plan(text: str) -> Faults:
    return Faults.from_json(text)


def _asked(at: str, step: int | None, rank: int, attempt: int) -> dict[str, Any]:
    """The hand's word, once it is done with whatever it does from outside; where there is no hand any more: go on."""
    question = {"at": at, "step": step, "rank": rank, "attempt": attempt, "pid": os.getpid()}
    try:
        with socket.create_connection(("127.0.0.1", int(os.environ[PORT])), _DEADLINE_S) as line:
            line.sendall(json.dumps(question).encode() + b"\n")
            answer = line.makefile("rb").readline()
    except OSError:
        answer = b""
    return json.loads(answer) if answer else {"do": GO}  # type: ignore[no-any-return]


def _do(word: dict[str, Any]) -> None:
    if word["do"] == GO:
        time.sleep(STEP_WHILE_STOPPING_S if word.get("slowly") else 0)
        return
    match What(word["do"]):
        case What.SEGFAULT:
            ctypes.string_at(0)
        case What.RAISE:
            raise RuntimeError(word["text"])
        case What.EXIT:
            os._exit(word["code"])
        case What.LEAVE:
            sys.exit(0)
        case What.OUT_OF_MEMORY:
            _take_all_memory()


def _take_all_memory() -> None:
    """Until the kernel kills this process, and no other."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 12)) * (1 << 10))


# --- Agents and storage children --------------------------------------------------------------------------------------


def arm_here(words: list[str]) -> None:
    """If this process, with that command line, does what a planned moment is named for."""
    plan = Faults.from_json(os.environ.get(PLAN, "[]"))
    for held in HELD:
        if held.module in words and any(fault.at == held.at for fault in plan.planned):
            setattr(os, held.call, _held(getattr(os, held.call), held, plan))


def _held(real: Callable[..., Any], held: Held, plan: Faults) -> Callable[..., Any]:
    def call(*paths: Any, **fields: Any) -> Any:
        found = held.path.search(os.fspath(paths[-1]))
        if found is not None:
            attempt, step = int(found[1]), int(found[2]) - 1
            if plan.meets(held.at, step, attempt):
                _asked(held.at, step, int(os.environ["TRAINJOB_SLOT"]), attempt)
        return real(*paths, **fields)

    return call
