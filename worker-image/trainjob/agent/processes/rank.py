"""One rank of an attempt, from its start to its end: its state, what it said, and what kind of end it came to.

Kept by `ranks` (the group), which tells it of its process. Touches no process itself. An end is decided by the wait
status, and explained by what the rank said before. Only of an end with 0 more is known: behind a shell it may be that
of what came after the script. It is no success if the last program that spoke as the rank told an exception, or was
killed, or if other ranks were refused a call because this one had ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Dict, Optional, Sequence, Tuple

from trainjob.agent import steady
from trainjob.agent.processes import crash, loader, memory
from trainjob.agent.processes import refusal as refusals
from trainjob.agent.processes.memory import OomKills
from trainjob.agent.processes.output import RankOutput
from trainjob_api import command, contract
from trainjob_api.contract import RankError, RankReport
from trainjob_api.rank_messages import Farewell

WRONG_PYTHON = ("No module named", "SyntaxError", "ImportError", "unknown option", "unrecognized")
"""What an interpreter that is not ours says last."""
_HIDDEN = re.compile(
    r"cannot import name '\w+' from '(?P<name>\w+)' \((?P<file>/(?!.*/lib/python3)[^)]*/(?P=name)\.py)\)"
)
"""Of a file beside the script that has the name of one of Python's modules: the library needs no others before it
greets.
"""


class Rank:
    """One rank process, from its fork to its end."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid = 0
        self.state = contract.RANK_STARTING
        self.kind: Optional[str] = None
        self.exit_code: Optional[int] = None
        self.signal: Optional[int] = None
        self.ended_at: Optional[float] = None
        self.error: Optional[RankError] = None
        self.error_kind: Optional[str] = None
        self._told: Dict[int, Tuple[str, RankError, float]] = {}
        """What ended the last program that spoke as a rank here, and when it said so, by rank: under a launcher there
        are several.
        """
        self._needed: Optional[RankError] = None
        """Others waited for it in vain."""
        self._refused: Optional[RankError] = None
        """A call of it was refused, since others had ended."""
        self._broken: Dict[int, Tuple[str, Optional[int], Optional[RankError]]] = {}
        """How programs ended that a shell or launcher had started, and that did not end well: by rank."""
        self.calls = 0
        """Of the library, by all that speak as ranks here."""
        self.leaving: Optional[int] = None
        """The exit code with which its script has ended, by its own word."""
        self._left: Optional[RankError] = None
        """Where its script ended itself, by its own word."""
        self.raised_at: Optional[float] = None
        """When it told what ends it."""
        self.leaves_with: Optional[int] = None
        """The same once the agent ends it, since it did not end by itself."""
        self.greeted = False
        """The library in the rank has said hello: faulthandler is in place."""
        self.verdict: Optional[str] = None
        """Why the agent ends it (END_STOPPED, END_DAMAGED, ...); its wait status then only says when."""
        self.argv: Sequence[str] = ()
        """What was executed."""
        self.output: Optional[RankOutput] = None
        self.gone: Optional[asyncio.Future[None]] = None
        """Done when the end is final: reaped, group gone, last words read."""

    @property
    def alive(self) -> bool:
        """A process is (or may still be) there."""
        return self.gone is not None and not self.gone.done()

    async def until_gone(self, timeout_s: float) -> None:
        """Until its end is final, or the time is over."""
        if self.gone is not None:
            await asyncio.wait([self.gone], timeout=timeout_s)

    def report(self) -> RankReport:
        """As the coordinator gets it."""
        out: RankReport = {"rank": self.rank, "local_rank": self.local_rank, "pid": self.pid, "state": self.state}
        if self.state != contract.RANK_ENDED and self.error_kind is not None:
            out["error"] = self.error
        elif self.state != contract.RANK_ENDED and self.leaving:
            out["error"] = {"type": "SystemExit", "message": str(self.leaving)}
        if self.raised_at is not None:
            out["raised_at"] = self.raised_at
        if self.state == contract.RANK_ENDED:
            out.update(
                {
                    "kind": self.kind or contract.END_LOST,
                    "exit_code": self.exit_code,
                    "signal": self.signal,
                    "ended_at": self.ended_at,
                    "error": self.error,
                }
            )
        return out

    def greet(self, number: int, is_new: bool) -> None:
        """A program speaks as rank `number`. `is_new`: the shell or launcher has started it, perhaps because the one
        before broke; how that one ended is of no account then.
        """
        self.greeted = True
        if self.state == contract.RANK_STARTING:
            self.state = contract.RANK_RUNNING
        if is_new:
            self._broken.pop(number, None)
            if self._told.pop(number, None) is not None and self.verdict is None:
                self._believe()

    def part(self, number: int, pid: int, farewell: Optional[Farewell]) -> None:
        """The program that spoke as rank `number`, behind a shell or a launcher, is gone. Without a farewell it was
        killed.
        """
        code = 0 if farewell is None else farewell.code
        if farewell is None:
            text = (
                f"the process {pid} that spoke as rank {number} is gone without a farewell (killed by the kernel for "
                "its memory? a fault of its own?), and what had started it continued"
            )
            self._broken[number] = contract.END_SIGNAL, None, {"type": "Killed", "message": text}
        elif code:
            self._broken[number] = contract.END_EXIT, code, None

    def accuse(self, number: int, kind: str, error: RankError) -> None:
        """Rank `number`'s own word about what is about to end it (OP_ERROR)."""
        kind = kind if kind in (contract.END_START, contract.END_STORAGE, contract.END_FULL) else contract.END_EXCEPTION
        self._told.pop(number, None)
        self._told[number] = (kind, bounded(error), steady.now())
        self._believe()

    def leaves(self, code: int, message: str = "", traceback: str = "") -> None:
        """Its own word that its script has ended with this exit code; what it said then, and where that was."""
        self.leaving = code
        if traceback:
            self._left = {"type": "SystemExit", "message": message, "traceback": traceback}
        if code and self.raised_at is None and self.verdict is None:
            self.raised_at = steady.now()

    def _believe(self) -> None:
        if self.verdict is not None and self.error is not None:
            return  # why the agent ends it was said before: what it raises meanwhile comes of that
        last = next(reversed(list(self._told.values())), None)
        self.error_kind, self.error, self.raised_at = (None, None, None) if last is None else last

    def miss(self, error: RankError) -> None:
        """Others waited for it in vain, so that an end with 0 (told already, or still to come) is no success."""
        self._needed = error
        self.overrule(contract.END_EARLY, error)

    def refuse(self, message: str) -> None:
        """A call of it fails, since others have ended: a code that it leaves with, without a word, comes of that."""
        self._refused = {"type": "RankGoneError", "message": message, "communication": True}

    def end_without_process(self, kind: str, error: Optional[RankError]) -> None:
        """There never was a process, or nobody knows it any more."""
        self.state, self.kind, self.ended_at = contract.RANK_ENDED, kind, steady.now()
        self.error = None if error is None else bounded(error)

    def overrule(self, kind: str, error: RankError) -> None:
        """It ended well, and yet that is no success."""
        if self.kind == contract.END_OK:
            self.kind, self.error = kind, bounded(error)

    def take_status(self, status: int) -> None:
        """The wait status; `kind` follows when the last words are read."""
        self.ended_at = steady.now()
        if os.WIFSIGNALED(status) and self.leaves_with is not None:
            self.exit_code = self.leaves_with
        elif os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.exit_code = os.WEXITSTATUS(status)

    def decide(self, plain: bool) -> None:
        """What kind of end it was."""
        self.state = contract.RANK_ENDED
        if self.verdict is not None:
            self.kind = self.verdict
        elif self.error_kind is not None:
            # Whatever its exit code: a shell that goes on behind a script that broke ends with 0.
            self.kind = self.error_kind
        elif self.exit_code == 0 and self._broken:
            self.kind, code, self.error = next(iter(self._broken.values()))
            self.exit_code = self.exit_code if code is None else code
        elif self.exit_code == 0:
            self.kind, self.error = contract.END_OK, None
            if self._needed is not None:
                self.overrule(contract.END_EARLY, self._needed)
        elif self.signal is not None:
            self.kind = contract.END_SIGNAL
            stack = crash.of(self.output.tail()) if self.output is not None else None
            self.error = None if stack is None else bounded(stack)
        else:
            self.kind = contract.END_EXIT
            refusal = refusals.of(self.exit_code, self.output.tail()) if self.output is not None else None
            left = self._left if self.exit_code == self.leaving else None
            self.error = None if refusal is None and left is None else bounded({**(left or {}), **(refusal or {})})
            if plain and self._refused is not None:
                self.error = bounded(self._refused)
            if plain and not self.greeted:
                self._look_for_wrong_python()

    def explain_kill(self, kills: OomKills) -> None:
        """By the kernel, for its memory, or by somebody else: of an end by SIGKILL that was not our doing, also of what
        spoke behind a shell or a launcher; and of an exception that tells of such a kill of what the rank had started.
        """
        if self.kind == contract.END_EXCEPTION and (memory.tells_of_a_kill(self.error) or loader.killed(self.error)):
            self._lost_a_process(kills)
            return
        killed = signal.SIGKILL in (self.signal, (self.exit_code or 0) - 128)
        was_killed = any(kind == contract.END_SIGNAL for kind, _, _ in self._broken.values())
        if self.kind not in (contract.END_SIGNAL, contract.END_EXIT) or not (killed or was_killed):
            return
        message = kills.claim()
        if message is not None:
            self.kind, self.error = contract.END_OOM, bounded({"type": memory.ERROR_TYPE, "message": message})

    def _lost_a_process(self, kills: OomKills) -> None:
        error = self.error or {}
        message = kills.claim("a process that it had started")
        killed = loader.killed(error)
        if message is None and killed is not None:
            self.kind, self.error = contract.END_SIGNAL, bounded(killed)
        if message is not None:
            text = f"{message} What it raised for that: {error.get('type')}: {error.get('message')}"
            told: RankError = {"type": memory.ERROR_TYPE, "message": text, "traceback": error.get("traceback") or ""}
            self.kind, self.error = contract.END_OOM, bounded(told)

    def _look_for_wrong_python(self) -> None:
        """The library greets before it touches the user's script: what cannot be imported before is the
        interpreter's lack.
        """
        tail = self.output.tail() if self.output is not None else ""
        last = tail.splitlines()[-1] if tail else ""
        if any(sign in last for sign in WRONG_PYTHON):
            self.kind = contract.END_START
            message = (
                f"This Python cannot run a rank (exit code {self.exit_code} before the script began): {last}. "
                f"{self._likely_cause(last)}"
            )
            self.error = bounded({"type": "CannotStart", "message": message, "traceback": tail})

    def _likely_cause(self, last: str) -> str:
        """Of a library that was not found: an option of the user's keeps the interpreter from looking where it lies."""
        hidden = _HIDDEN.search(last)
        if hidden is not None:
            return f"{hidden['file']} hides Python's own module {hidden['name']}: rename it."
        parsed = command.parse_python(self.argv)
        option = command.ignores_environment(parsed.flags) if parsed is not None else None
        if option is None or "No module named" not in last:
            return "Is it Python 3.9 or newer?"
        return (
            f"With {option} Python ignores PYTHONPATH, which is how a rank finds the training library: "
            f"leave {option} out of the command, or install trainjob in the image."
        )


def bounded(error: RankError) -> RankError:
    """Within the contract's limits; of a traceback the end is kept."""
    return {
        "type": str(error.get("type", ""))[:200],
        "message": str(error.get("message", ""))[: contract.MESSAGE_LIMIT],
        "traceback": str(error.get("traceback", ""))[-contract.TRACEBACK_LIMIT :],
        "communication": bool(error.get("communication", False)),
    }


def how_it_ended(report: RankReport) -> str:
    """A few words for peers' error messages."""
    error = report.get("error")
    number = report.get("signal")
    if report.get("kind") == contract.END_OK:
        return "ended with exit code 0"
    if report.get("kind") == contract.END_STOPPED:
        return "was stopped by its agent"
    if report.get("kind") == contract.END_LOST:
        return "was lost when its agent restarted"
    if error and error.get("type") and (error.get("type") != "SystemExit" or error.get("message")):
        return f"ended with {error.get('type')}: {error.get('message', '')[:200]}"
    if number:
        return f"was killed by signal {number} ({_signal_name(number)})"
    return f"ended with exit code {report.get('exit_code')}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
