"""The control side of an in-process job, in a process of its own: `python -m trainjob.launch.in_process.companion`.

The process that trains starts it, gives it one JSON line (`Order`) and keeps the pipe open: when that closes the
training has ended or was killed, and the job is stopped as by Ctrl-C. The last line that it answers is how the job
ended; before it come, where that is asked for, lines of what there is to show. A process, not a thread: a debugger that
holds the training must not hold agents, uploads and the operator.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import threading
import time
from typing import Any, TypedDict

from trainjob.launch.errors import LaunchError
from trainjob.launch.in_process.telling import STATUS, Telling, own_output
from trainjob.launch.local.backend import LocalEvent, LocalOptions, run_job
from trainjob.launch.local.interrupts import Interrupts, interrupts
from trainjob.launch.local.lock import JobRunning
from trainjob.screen import streams
from trainjob.screen.asked import Asker
from trainjob_api.v1alpha1 import TrainJob

RETRY_S = 0.2
_PIECE = 65536


class Order(TypedDict):
    """What is asked for."""

    job: dict[str, Any]
    """The TrainJob."""
    show: bool
    """Whether notes and the agent's words go to standard error."""
    tell: bool
    """Whether they and the job's states are told on standard output instead, to a process that shows them itself."""
    patience_s: float
    """How long a job of that name that is just ending is waited for."""
    asker: str
    """In whose words it speaks, as `screen.asked` has them."""
    folder: str
    """Where stand-ins and processes meet. It goes with the job: the process that made it may be killed."""


def main() -> int:
    """Run the job; 0 when it was run, however it ended."""
    streams.have_all()
    with interrupts(ends=True) as signals:  # to the last word: whatever comes on the pipe, the answer is given
        telling = Telling(own_output())
        order, asked = _ordered()
        threading.Thread(target=_follow, args=(asked,), name="the process that trains", daemon=True).start()
        said = _answer(order, telling, signals)
        shutil.rmtree(order["folder"], ignore_errors=True)
        telling.tell(said)
        telling.close()
    return 0


def _answer(order: Order, telling: Telling, signals: Interrupts) -> dict[str, object]:
    """The last words: how the job ended, or why it was refused."""
    deadline = time.monotonic() + order["patience_s"]
    while True:
        try:
            signals.let_through()
            signals.held = True  # but for where `run_job` lets them through
            return _run(order, telling)
        except JobRunning as error:
            if time.monotonic() > deadline:
                return {"refused": str(error)}
            time.sleep(RETRY_S)
        except LaunchError as error:
            return {"refused": str(error)}
        except KeyboardInterrupt:
            return {"refused": "it was stopped before it began"}


def _run(order: Order, telling: Telling) -> dict[str, object]:
    listen = functools.partial(_tell, telling) if order["tell"] else _show if order["show"] else None
    job = TrainJob.model_validate(order["job"])
    outcome = run_job(job, options=LocalOptions(asker=Asker(order["asker"])), listener=listen)
    return {"job": outcome.job.to_json(), "interrupted": outcome.interrupted}


def _ordered() -> tuple[Order, int]:
    """What is asked for; how often its end was asked for by then."""
    data = b""
    while b"\n" not in data and (piece := os.read(0, _PIECE)):
        data += piece
    order, _, rest = data.partition(b"\n")
    found: Order = json.loads(order)
    return found, len(rest)


def _follow(asked: int) -> None:
    """Whatever comes on the pipe, its end too, asks for the job's end."""
    for _ in range(asked):
        os.kill(os.getpid(), signal.SIGTERM)
    while os.read(0, 1):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def _tell(telling: Telling, event: LocalEvent) -> None:
    if event.kind == "status" and event.job is not None:
        telling.tell({STATUS: event.job.to_json()})
    elif event.kind in ("line", "note"):
        telling.tell({event.kind: event.text})


def _show(event: LocalEvent) -> None:
    if event.kind in ("line", "note"):
        with contextlib.suppress(OSError, ValueError):  # what trains does not end by it
            streams.say(event.text)


if __name__ == "__main__":
    sys.exit(main())
