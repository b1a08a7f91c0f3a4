"""What others see of a process: its command line and environment in /proc, where a fork has its parent's.

The kernel shows the memory that the strings lay in when the program was executed. A fork writes its own over it, into
room that the agent left there: people look for `train.py` in lists of processes, and agents know a rank's processes by
its variables (`strays`, `leaving`).
"""

from __future__ import annotations

import ctypes
import os
from typing import List, Mapping, Optional, Sequence, Tuple

from trainjob_api.warm_messages import ENV_ROOM

_ARG_START = 45
"""Of the fields in /proc/self/stat that follow the name: start and end of the arguments, then of the environment."""


_room: Optional[Tuple[int, int]] = None
"""Where variables are written over, and how many bytes; a fork of one that shows its own writes over those."""


def show(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """As far as there is room; where the kernel tells no addresses everything stays as it was."""
    global _room
    arg_start, arg_end, env_start, env_end = _places()
    if 0 < arg_start < arg_end:
        _write(arg_start, arg_end - arg_start, [os.fsencode(word) for word in argv])
    if 0 < env_start < env_end:
        shown = ctypes.string_at(env_start, env_end - env_start)
        _room = _room or _found(shown, env_start)
        if _room is not None:
            start, size = _room
            at = start - env_start
            there = {*shown[:at].split(b"\0"), *shown[at + size :].split(b"\0")}
            new = [os.fsencode(f"{name}={value}") for name, value in environ.items()]
            _write(start, size, [each for each in new if each not in there])


def _found(shown: bytes, env_start: int) -> Optional[Tuple[int, int]]:
    mark = f"{ENV_ROOM}=".encode()
    at = 0 if shown.startswith(mark) else shown.find(b"\0" + mark) + 1
    return (env_start + at, shown.index(b"\0", at) - at + 1) if shown.startswith(mark, at) else None


def _write(start: int, size: int, words: List[bytes]) -> None:
    while words and sum(map(len, words)) + len(words) > size:
        words = words[:-1]
    text = b"".join(word + b"\0" for word in words)
    ctypes.memmove(start, text + bytes(size - len(text)), size)


def _places() -> Tuple[int, int, int, int]:
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0, 0, 0
    found = tuple(map(int, fields[_ARG_START : _ARG_START + 4]))
    return (found[0], found[1], found[2], found[3]) if len(found) == 4 else (0, 0, 0, 0)
