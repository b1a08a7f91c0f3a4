"""A traceback that was shown already is not shown again: ranks that run the same script raise the same error, and do so
again when they are restarted. The stack of a crash in native code, which faulthandler prints, is one too. Pure.

Fed by `display` with the lines of all ranks, each with its rank in front (`r01 | ...`). Where one line differs, all of
them are shown. That others raise the same is said once, by the first of them, until something else is shown.
What a script says that refuses its arguments counts too. `tj logs` has every rank's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trainjob_api.same_error import by_any_process

KEPT = 8
"""Tracebacks that later ones are compared with, the newest."""
SHOWN = 80
"""Characters of the exception's name, which alone is said instead."""
_LINE = re.compile(r"(?P<rank>r\d+) \| (?:\[rank\d+\]:\s?)?(?P<text>.*)", re.DOTALL)
_HEAD = re.compile(r"(?P<inner>\S+\s+)?Traceback \(most recent call last\):$")
"""`inner`: `Original Traceback`, of the exception that was told before it."""
_BEGINS = "Traceback (most recent call last):"
"""At the end of a line: what stands before it is of a prompt, or of whatever else came without a line's end."""
_CHAIN = ("The above exception was", "During handling of the above")
_CRASH = "Fatal Python error: "
_USAGE = "usage: "
"""How argparse and its like begin where they refuse a script's arguments; and how they end."""
_REFUSES = re.compile(r"\S+: error: ")
_MEANT = re.compile(r"\. Did you mean: .*\?$")
"""Python says it where it prints an exception, and nowhere else."""
_OF_A_CRASH = ("Current thread 0x", "Thread 0x", "Extension modules: ", "Python runtime state: ")


@dataclass
class _Traceback:
    rank: str
    attempt: int = 1
    """In which it was printed."""
    lines: list[str] = field(default_factory=list)
    """Without what differs by process."""
    last: str = ""
    """The newest line that is not indented: the exception. Of a crash the first one."""
    others: set[str] = field(default_factory=set)
    """Ranks of which it was said that theirs is the same."""
    told: bool = False
    """The line with the exception has come; what may follow is the one that it was raised from."""

    def goes_on_with(self, text: str) -> bool:
        """Whether this line is still of it."""
        if self.is_usage:
            return not self.told and (text.startswith(" ") or _REFUSES.match(text) is not None)
        if self._is_crash:
            return not text or text.startswith((" ", *_OF_A_CRASH))
        if not self.told or not text or text.startswith((" ", *_CHAIN)):
            return True
        head = _HEAD.match(text)
        return head is not None and head["inner"] is not None

    @property
    def is_usage(self) -> bool:
        """Of a script that refuses its arguments."""
        return bool(self.lines) and self.lines[0].startswith(_USAGE)

    @property
    def name(self) -> str:
        """What it is called where it is not shown again."""
        if self.is_usage:
            return "usage error"
        return (self.last if self._is_crash else self.last.partition(":")[0])[:SHOWN]

    @property
    def _is_crash(self) -> bool:
        return bool(self.lines) and self.lines[0].startswith(_CRASH)

    def add(self, text: str) -> None:
        """The next of its lines."""
        text = by_any_process(text)
        self.lines.append(text)
        if self.is_usage:
            self.last, self.told = text, self.told or _REFUSES.match(text) is not None
            return
        if self._is_crash:
            self.last, self.told = self.lines[0], True
            return
        if text and not text.startswith(" "):
            self.last = text
        if text:
            self.told = not text.startswith((" ", *_CHAIN)) and not _HEAD.match(text)


@dataclass
class _Held:
    """A traceback that may turn out to be one of those above."""

    traceback: _Traceback
    printed: list[str] = field(default_factory=list)
    """As they came."""


class Repeats:
    """What is to be shown of the lines of all ranks."""

    def __init__(self) -> None:
        self.attempt = 1
        """Whose lines come."""
        self._seen: list[_Traceback] = []
        self._open: dict[str, _Traceback] = {}
        """By rank: one that is being shown."""
        self._held: dict[str, _Held] = {}
        self._said = ""
        """What was said instead of the last ones, where nothing else was shown since."""

    def take(self, line: str) -> list[str]:
        """A line came; what to show now."""
        lines = self._take(line)
        if any("(the same " not in each for each in lines):
            self._said = ""
        return lines

    def _take(self, line: str) -> list[str]:
        found = _LINE.fullmatch(line)
        if found is None:
            return [line]
        rank, text = found["rank"], found["text"].rstrip()
        if rank in self._held:
            if self._held[rank].traceback.goes_on_with(text):
                return self._compare(rank, text, line)
            return [*self._judge(rank), *self._take(line)]
        shown = self._open.get(rank)
        if shown is not None and shown.goes_on_with(text):
            shown.add(text)
            return [line]
        self._open.pop(rank, None)
        if text.endswith(_BEGINS):
            text = _BEGINS
        elif not text.startswith((_CRASH, _USAGE)):
            return [line]
        if self._seen:
            self._held[rank] = _Held(_Traceback(rank))
            return self._compare(rank, text, line)
        self._begin(rank).add(text)
        return [line]

    def has_shown(self, traceback: str, rank: str | None = None) -> int | None:
        """In which attempt one of that rank that came to the same exception was last among the lines, or one that its
        own was said to be the same as; None: in none. `rank` None: of any.
        """
        told = _Traceback("")
        for line in traceback.splitlines():
            told.add(line.rstrip())
        seen = [one for one in self._seen if rank is None or rank == one.rank or rank in one.others]
        same = [one.attempt for one in seen if one.told and _MEANT.sub("", one.last) == told.last]
        return same[-1] if same else None

    def release(self) -> list[str]:
        """No more lines come: what is still held."""
        return [line for rank in list(self._held) for line in self._judge(rank)]

    def settle(self) -> list[str]:
        """The job has something to say: tracebacks that have come to their exception are taken as closed."""
        closed = [rank for rank, held in self._held.items() if held.traceback.told]
        lines = [line for rank in closed for line in self._judge(rank)]
        self._said = ""
        return lines

    def _judge(self, rank: str) -> list[str]:
        """It is closed: told as the same as one whose lines are all of its own, else shown."""
        held = self._held[rank]
        mine = _stripped(held.traceback.lines)
        same = next((one for one in self._seen if one.told and _stripped(one.lines) == mine), None)
        if same is None:
            return self._show(rank)
        del self._held[rank]
        same.others.add(rank)
        said, rest = f"(the same {held.traceback.name} as {same.rank}'s above)", held.printed[len(mine) :]
        if said == self._said:  # another rank, or the next start, and nothing else was said between
            return rest
        self._said = said
        return [f"{rank} | {said}", *rest]

    def _show(self, rank: str) -> list[str]:
        held = self._held.pop(rank)
        begun = self._begin(rank)
        for each in held.traceback.lines:
            begun.add(each)
        return held.printed

    def _begin(self, rank: str) -> _Traceback:
        self._open[rank] = begun = _Traceback(rank, self.attempt)
        self._seen = [*self._seen, begun][-KEPT:]
        return begun

    def _compare(self, rank: str, text: str, line: str) -> list[str]:
        held = self._held[rank]
        held.traceback.add(text)
        held.printed.append(line)
        mine = held.traceback.lines
        if any(one.lines[: len(mine)] == mine or mine[: len(one.lines)] == one.lines for one in self._seen):
            return []
        return self._show(rank)


def _stripped(lines: list[str]) -> list[str]:
    """Without the empty lines at its end."""
    end = len(lines)
    while end and not lines[end - 1]:
        end -= 1
    return lines[:end]
