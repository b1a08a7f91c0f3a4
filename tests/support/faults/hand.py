"""The hand that strikes, in the test's process: processes that meet a moment of the plan ask it, and it does what is
planned before they go on.

    with Hand(plan, reach) as hand:
        run a job with hand.environment()
    assert hand.struck == [0]

Each fault strikes once. Whoever only met the moment goes on once whoever was struck is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.faults import points, targets
from support.faults.plan import BY_OTHERS, END, ENDS_A_PROCESS, STEP, WITHIN, Fault, Faults, What
from support.patience import HANG_S

DELAY_S = 0.15
"""From a point to the blow that strikes inside the call behind it."""
GONE_S = 10.0
"""So long who was struck may take to go: who waits for it may be in its way."""


def _nothing(*_: object) -> None:
    raise AssertionError("this plan needs more than processes: say how (Reach)")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What the hand can get hold of."""

    mark: str
    """Pods of the job work below this folder."""
    job: str
    delete_pod: Callable[[str], None] = _nothing
    """By its name."""
    freeze_operator: Callable[[], None] = _nothing
    kill_operator: Callable[[], None] = _nothing
    stop_job: Callable[[], None] = _nothing
    before: Callable[[Fault], None] = lambda _: None
    """Called right before a blow: what is true then."""


class Hand:
    """`with` it around the run of a job."""

    def __init__(self, plan: Faults, reach: Reach) -> None:
        self._plan, self._reach = plan, reach
        self._lock = threading.Lock()
        self._taken: list[int] = []
        self._over = [threading.Event() for _ in plan.planned]
        self._attempts: dict[int, int] = {}
        """By fault that was taken: in which attempt."""
        self._errors: list[BaseException] = []
        self._within: dict[int, Fault] = {}
        """By process: what it is to do to itself when it asks again."""
        self._server = _Server(self._answer, self._errors)

    @property
    def struck(self) -> list[int]:
        """Numbers of the faults that have struck, in the plan's order."""
        return sorted(number for number, over in enumerate(self._over) if over.is_set())

    def environment(self) -> dict[str, str]:
        """For all processes of the job."""
        port = self._server.server_address[1]
        return {points.PLAN: self._plan.to_json(), points.PORT: str(port)}

    def __enter__(self) -> Hand:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hand", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._errors:
            raise self._errors[0]

    # -- one question --------------------------------------------------------------------------------------------------

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What this process is to do; given once all else is done."""
        if asked["at"] == points.STRUCK_FROM_OUTSIDE:
            return _word(self._within.pop(asked["pid"], None))
        number = self._take(asked)
        if number is None:
            return self._of_a_bystander(asked)
        fault = self._plan.planned[number]
        if fault.inside:
            threading.Thread(target=self._later, args=(number, asked["pid"]), daemon=True).start()
            return _word(None)
        mine = asked["pid"] if fault.at not in BY_OTHERS else None
        self._reach.before(fault)
        if fault.what in WITHIN and mine is not None:
            self._over[number].set()
            return _word(fault)
        self._strike(number, mine)
        return {**_word(None), "slowly": _needs_time(fault)}

    def _take(self, asked: dict[str, Any]) -> int | None:
        """The first fault that strikes now: nobody else gets it."""
        with self._lock:
            for number, fault in enumerate(self._plan.planned):
                if number not in self._taken and fault.rank == asked["rank"] and _due(fault, asked):
                    self._taken.append(number)
                    self._attempts[number] = asked["attempt"]
                    return number
        return None

    def _of_a_bystander(self, asked: dict[str, Any]) -> dict[str, Any]:
        """It waits where somebody else is about to be struck inside a call, and takes its time where the job is being
        stopped or a pod goes: a job of a few quick steps would be over before that is felt.
        """
        stopping = False
        for number, fault in enumerate(self._plan.planned):
            if fault.inside and fault.rank != asked["rank"] and _due(fault, asked):
                self._over[number].wait(HANG_S)
            stopping |= (
                _needs_time(fault)
                and self._over[number].is_set()
                and asked["at"] == STEP
                and asked["attempt"] == self._attempts.get(number)
            )
        return {**_word(None), "slowly": stopping}

    # -- the blow ------------------------------------------------------------------------------------------------------

    def _later(self, number: int, pid: int) -> None:
        try:
            time.sleep(DELAY_S)
            self._reach.before(self._plan.planned[number])
            self._strike(number, pid)
        except BaseException as error:  # the thread's top: told by __exit__
            self._errors.append(error)
            self._over[number].set()

    def _strike(self, number: int, met_by: int | None) -> None:
        """`met_by`: the rank's process, where it was the rank that met the moment."""
        fault = self._plan.planned[number]
        try:
            pid = self._do(fault, met_by)
            if pid is not None and fault.what in ENDS_A_PROCESS:
                _wait_until_gone(pid)
        finally:
            self._over[number].set()

    def _do(self, fault: Fault, met_by: int | None) -> int | None:
        """Who was struck, if it is a process."""
        match fault.what:
            case What.DELETE_POD:
                self._reach.delete_pod(self._pod_of(fault))
            case What.FREEZE_OPERATOR:
                self._reach.freeze_operator()
            case What.KILL_OPERATOR:
                self._reach.kill_operator()
            case What.STOP_JOB:
                self._reach.stop_job()
            case What.KILL_AGENT:
                return self._signal(self._find(targets.AGENT, fault), signal.SIGKILL)
            case What.KILL_WARM_PARENT:
                return self._signal(self._find(targets.WARM_PARENT, fault), signal.SIGKILL)
            case _:
                pid = met_by if met_by is not None else self._find(targets.RANK, fault)
                if fault.what in WITHIN:
                    self._within[pid] = fault
                return self._signal(pid, _SIGNALS.get(fault.what, points.NOW))
        return None

    def _find(self, kind: str, fault: Fault) -> int:
        assert fault.rank is not None
        return targets.of_rank(self._reach.mark, self._reach.job, kind, fault.rank).pid

    def _pod_of(self, fault: Fault) -> str:
        assert fault.rank is not None
        agent = targets.of_rank(self._reach.mark, self._reach.job, targets.AGENT, fault.rank)
        return f"{self._reach.job}-{agent.slot}"

    @staticmethod
    def _signal(pid: int, number: int) -> int:
        os.kill(pid, number)
        return pid


_SIGNALS: dict[What, int] = {
    What.KILL: signal.SIGKILL,
    What.TERMINATE: signal.SIGTERM,
}


def _due(fault: Fault, asked: dict[str, Any]) -> bool:
    return fault.due(asked["at"], asked["step"], asked["attempt"])


def _needs_time(fault: Fault) -> bool:
    """Whether the job could be over before the blow is felt: whoever met it goes on a little later."""
    return fault.what is What.STOP_JOB or (fault.what is What.DELETE_POD and fault.at != END)


def _word(fault: Fault | None) -> dict[str, Any]:
    if fault is None:
        return {"do": points.GO}
    return {"do": fault.what.value, "text": fault.text, "code": fault.code}


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + GONE_S
    while not targets.gone(pid) and time.monotonic() < deadline:
        time.sleep(0.002)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, Any]], errors: list[BaseException]) -> None:
        self.answer, self.errors = answer, errors
        super().__init__(("127.0.0.1", 0), _Question)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # who asked was killed meanwhile; errors of our own are kept by the handler


class _Question(socketserver.StreamRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        question = self.rfile.readline()
        if not question.endswith(b"\n"):
            return  # who would have asked was killed in the middle of it
        try:
            answer = self.server.answer(json.loads(question))
        except BaseException as error:
            self.server.errors.append(error)
            raise
        self.wfile.write(json.dumps(answer).encode() + b"\n")
