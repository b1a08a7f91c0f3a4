"""A fluent fault injector: `fail_at(rank=1, step=40).sigkill()` in the test, `faults.point("loop", step)` in the
training loop.

The plan travels to the ranks in one environment variable; a marker file makes each fault fire once, however often the
loop passes the point again. Standard library only: the loops import this in the ranks.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ENV = "TRAINJOB_TEST_FAULTS"
_AGENT = os.environ.get("TRAINJOB_AGENT_PID", "")
"""Read before the loop may take our variables away."""
DELAY_S = 0.15
"""From the point to a delayed blow: the rank is inside the call that follows."""
DEADLINE_S = 30.0
STOPPING = "stopping"
"""The test's own marker: the job has been told to stop."""
STEP_WHILE_STOPPING_S = 2.0
"""Less than the grace that ranks have, so that a loop that only looks at a flag ends by itself."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, once."""

    rank: int
    step: int
    where: str = "loop"
    attempt: int | None = None
    """None: in whichever attempt gets there first."""
    action: str = "sigkill"
    value: int = 0
    text: str = ""
    delayed: bool = False

    def in_attempt(self, number: int) -> Fault:
        """Only in that attempt."""
        return replace(self, attempt=number)

    def inside_the_next_call(self) -> Fault:
        """A moment later, so that the rank is inside the call behind the point; others wait at the point until then."""
        return replace(self, delayed=True)

    def sigkill(self) -> Fault:
        """SIGKILL to itself."""
        return replace(self, action="signal", value=int(signal.SIGKILL))

    def sigterm(self) -> Fault:
        """SIGTERM to itself."""
        return replace(self, action="signal", value=int(signal.SIGTERM))

    def raises(self, text: str) -> Fault:
        """RuntimeError(text) in the user's code."""
        return replace(self, action="raise", text=text)

    def exits(self, code: int) -> Fault:
        """os._exit(code)."""
        return replace(self, action="exit", value=code)

    def segfaults(self) -> Fault:
        """A real one."""
        return replace(self, action="segfault")

    def kills_its_agent(self) -> Fault:
        """SIGKILL to the agent above it."""
        return replace(self, action="agent")

    def asks_for_a_stop(self) -> Fault:
        """Waits until the test has stopped the job (`STOPPING`); each later step waits too, so that the word comes."""
        return replace(self, action="stop")

    def leaves(self) -> Fault:
        """sys.exit(0) while the others go on."""
        return replace(self, action="leave")


def fail_at(*, rank: int, step: int) -> Fault:
    """In the loop, at the top of that step."""
    return Fault(rank, step)


def fail_in_save(*, rank: int, step: int) -> Fault:
    """While it writes the files of that step's checkpoint."""
    return Fault(rank, step, where="save")


def fail_in_report(*, rank: int, step: int) -> Fault:
    """Inside report() of that step, while the others are not there yet."""
    return Fault(rank, step, where="report", delayed=True)


def fail_at_import(*, rank: int) -> Fault:
    """While the script's imports run."""
    return Fault(rank, -1, where="import")


def environment(folder: Path, faults: Sequence[Fault]) -> dict[str, str]:
    """What the ranks need; markers are kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return {ENV: json.dumps({"folder": str(folder), "faults": [asdict(fault) for fault in faults]})}


def fired(folder: Path) -> list[int]:
    """Numbers of the faults that have fired, in the plan's order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def point(where: str, step: int = -1) -> None:
    """In a training loop: whatever is planned for this rank and moment happens now."""
    plan = json.loads(os.environ.get(ENV, "{}"))
    if plan and os.path.exists(os.path.join(plan["folder"], STOPPING)):
        time.sleep(STEP_WHILE_STOPPING_S)
    for number, planned in enumerate(plan.get("faults", ())):
        fault = Fault(**planned)
        if (fault.where, fault.step) != (where, step) or fault.attempt not in (None, _attempt()):
            continue
        marker = os.path.join(plan["folder"], str(number))
        if fault.rank == _rank():
            _fire(fault, marker)
        elif fault.delayed:
            _wait_for(marker)
            if fault.action == "agent" or (fault.action, fault.value) == ("signal", signal.SIGKILL):
                _wait_for_end(marker)


def _fire(fault: Fault, marker: str) -> None:
    try:
        file = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(file, _AGENT.encode() if fault.action == "agent" else str(os.getpid()).encode())
    os.close(file)
    if fault.action == "stop":
        _wait_for(os.path.join(os.path.dirname(marker), STOPPING))
        return
    if not fault.delayed:
        _strike(fault)
        return
    threading.Thread(target=_strike_later, args=(fault,), daemon=True).start()


def _strike_later(fault: Fault) -> None:
    time.sleep(DELAY_S)
    _strike(fault)


def _strike(fault: Fault) -> None:
    if fault.action == "signal":
        os.kill(os.getpid(), fault.value)
        time.sleep(DEADLINE_S)
    elif fault.action == "agent":
        os.kill(int(_AGENT), signal.SIGKILL)
        time.sleep(DEADLINE_S)
    elif fault.action == "raise":
        raise RuntimeError(fault.text)
    elif fault.action == "exit":
        os._exit(fault.value)
    elif fault.action == "segfault":
        ctypes.string_at(0)
    elif fault.action == "leave":
        sys.exit(0)


def _wait_for(marker: str) -> None:
    """Until the delayed fault of the other rank is about to strike, and a little longer than that."""
    deadline = time.monotonic() + DEADLINE_S
    while not os.path.exists(marker):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the fault {marker} did not fire")
        time.sleep(0.005)
    time.sleep(2 * DELAY_S if time.time() - os.stat(marker).st_mtime < DELAY_S else 0)


def _wait_for_end(marker: str) -> None:
    """Until who is killed is gone: on a busy machine the blow may come long after it was due."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            with open(marker) as file, open(f"/proc/{int(file.read())}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] in "ZX":
                    return
        except ValueError:
            pass  # not written yet
        except OSError:
            return
        time.sleep(0.005)
    raise TimeoutError(f"who should be killed by the fault {marker} lives")


def _rank() -> int:
    return int(os.environ["RANK"])


def _attempt() -> int:
    return int(os.environ["TRAINJOB_ATTEMPT"])
