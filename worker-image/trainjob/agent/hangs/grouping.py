"""Ranks by where they stand: what faulthandler wrote of each, put together, and the odd ones named. Pure.

Called by `tj stack`, `watch` and `sentence`. Of each rank its main thread counts; two ranks stand together if that is
inside the same function, called from the same line of the user's code. A rank that gave no stack stands by what was
said instead.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.agent.processes.stacks import CUT, MORE
from trainjob.agent.rank_names import ranks_text

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')
"""What faulthandler writes last where a process has more than it shows."""
_LIBRARY = re.compile(
    r"^<|/lib(64)?/python[0-9.]+/|/(site|dist)-packages/|/trainjob_api/"
    r"|/trainjob/(agent|checkpoint|collective|compat|integrations|launch|session|torch)\b"
)

_COLLECTIVE = re.compile(
    r"/torch/(autograd/graph|nn/parallel/distributed|distributed/[^\"]*)\.py$|/trainjob/(session|collective)\b"
)
"""Where a rank waits for others: a collective of torch's, a backward pass with DDP's, a call of ours."""
_WRAPPING = re.compile(r"^(wrapper|inner|checked|_.*|decorate_.*|<.*>)$")
_OURS = re.compile(r"/trainjob/(session|collective)\b|/trainjob_api/")


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: str
    """A number, or ??? where the interpreter does not know."""
    function: str

    @property
    def is_users(self) -> bool:
        """Neither Python's, nor of an installed package, nor ours."""
        return not _LIBRARY.search(self.file)

    @property
    def place(self) -> str:
        """`train.py:88`, and of a package with its folder: `distributed/distributed_c10d.py:2810`."""
        parts = self.file.split("/")
        return f"{'/'.join(parts[-1:] if self.is_users else parts[-2:])}:{self.line}"


class Group(NamedTuple):
    """Ranks that stand together."""

    ranks: Tuple[int, ...]
    where: str
    """In words, without a subject."""
    text: str
    """What one of them gave."""


def group(stacks: Mapping[int, str]) -> List[Group]:
    """The largest first. `stacks`: of each rank what faulthandler wrote, or a sentence why there is none."""
    together: Dict[str, List[int]] = {}
    for rank in sorted(stacks):
        together.setdefault(key(stacks[rank]), []).append(rank)
    groups = [
        Group(tuple(ranks), _where(stacks[ranks[0]], len(ranks)), stacks[ranks[0]]) for ranks in together.values()
    ]
    return sorted(groups, key=lambda each: (-len(each.ranks), each.ranks))


def odd(groups: List[Group]) -> Tuple[int, ...]:
    """Those that do not stand where more than half of all ranks stand; none if there is no such place."""
    total = sum(len(each.ranks) for each in groups)
    if len(groups) < 2 or 2 * len(groups[0].ranks) <= total:
        return ()
    return tuple(sorted(rank for each in groups[1:] for rank in each.ranks))


def lines(stacks: Mapping[int, str]) -> List[str]:
    """As people read it: each group with the frames that say where it stands, and at last the odd ones."""
    groups = group(stacks)
    said: List[str] = []
    for each in groups:
        share = f"{len(each.ranks)} of {len(stacks)} ranks ({ranks_text(each.ranks)})"
        said.append(f"{share if len(each.ranks) > 1 else ranks_text(each.ranks)}: {each.where}")
        said += [f"    {line}" for line in _folded(told(main_thread(each.text)))]
    strays = odd(groups)
    if strays:
        stand = "stands elsewhere than" if len(strays) == 1 else "stand elsewhere than"
        said.append(f"{ranks_text(strays)} {stand} the others")
    return said


def each(stacks: Mapping[int, str]) -> List[str]:
    """All threads of each, as they were written."""
    return [f"rank {rank}: {text}" if "\n" not in text else f"rank {rank}:\n{text}" for rank, text in stacks.items()]


def main_thread(text: str) -> List[Frame]:
    """Its frames, the innermost first: faulthandler writes the thread that began last first, so the main one last.
    Empty: this is no stack.
    """
    frames: List[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        found = _FRAME.match(line)
        if found is not None:
            frames.append(Frame(found["file"], found["line"], found["function"]))
    return frames


def main_first(text: str) -> str:
    """The same stacks, the main thread's first and without threads in which there is nothing but ours."""
    threads: List[List[str]] = [[]]
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        if line:
            threads[-1].append(line)
    *others, main = ("\n".join(each) for each in threads if each)
    return "\n".join([main, *(each for each in others if not _is_ours(main_thread(each)))])


def _is_ours(frames: List[Frame]) -> bool:
    return users(frames) is None and any(_OURS.search(frame.file) for frame in frames)


def is_cut(text: str) -> bool:
    """Whether there is more of this stack: it may be the main thread that is missing."""
    lines = text.splitlines()
    return bool(lines) and (lines[0].endswith(CUT) or lines[-1] == MORE)


def told(frames: List[Frame]) -> List[Frame]:
    """Those that say where a rank stands: down to the user's line, and then only the user's."""
    mine = users(frames)
    first = len(frames) if mine is None else frames.index(mine)
    return frames[:first] + [frame for frame in frames[first:] if frame.is_users]


INNERMOST = 3
"""Frames of libraries that are shown above the user's line; what lies between is counted."""


def _folded(frames: List[Frame]) -> List[str]:
    """A line each. Many frames of libraries in a row (a module's forward() in torch) tell nothing but the way."""
    mine = users(frames)
    first = 0 if mine is None else frames.index(mine)
    # How a call of ours waits tells nobody anything: the words before it name the call.
    inner = 0 if mine is not None and any(_OURS.search(frame.file) for frame in frames[:first]) else INNERMOST
    if first - inner < 2:  # a line that counts one frame is no shorter than it
        return [f"{frame.place} {frame.function}" for frame in frames]
    between = f"... {first - inner} frames of libraries"
    shown = [f"{frame.place} {frame.function}" for frame in (*frames[:inner], *frames[first:])]
    return [*shown[:inner], between, *shown[inner:]]


def called(frames: List[Frame]) -> List[Frame]:
    """What is above the user's own: what the user's line called; all, where nothing is the user's."""
    mine = users(frames)
    return frames if mine is None else frames[: frames.index(mine)]


def users(frames: List[Frame]) -> Optional[Frame]:
    """The innermost one of the user's own code."""
    return next((frame for frame in frames if frame.is_users), None)


def waits(text: str) -> bool:
    """Whether a rank with this stack waits for other ranks."""
    return any(_COLLECTIVE.search(frame.file) for frame in called(main_thread(text)))


def call(frames: List[Frame]) -> str:
    """The call that the user's line makes, as it is known: the outermost one that is no wrapper."""
    above = called(frames) or frames[:1]
    return next((f.function for f in reversed(above) if not _WRAPPING.match(f.function)), above[-1].function)


def key(text: str) -> str:
    """What two ranks have in common that stand together."""
    frames = main_thread(text)
    if not frames:
        return text
    mine = users(frames)
    # Not the line of a library: a wait in a loop stands on two of them in turn.
    return "\n".join([frames[0].file, frames[0].function, "" if mine is None else f"{mine.place} {mine.function}"])


def _where(text: str, ranks: int) -> str:
    frames = main_thread(text)
    if not frames:
        return text
    inner, mine = frames[0], users(frames)
    if mine is not None and waits(text):
        return f"{'waits' if ranks == 1 else 'wait'} in {call(frames)} ({mine.place})"
    said = f"in {inner.function} ({inner.place})"
    return said if mine is None or mine is inner else f"{said}, called in {mine.function} ({mine.place})"
