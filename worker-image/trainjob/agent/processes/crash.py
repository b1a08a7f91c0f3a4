"""The stack of a rank that crashed in native code, out of what faulthandler wrote to the rank's output. Pure."""

from __future__ import annotations

import os
import re
from typing import List, Optional

from trainjob_api.contract import RankError

_BEGIN = re.compile(r"^Fatal Python error: (?P<what>.+)$", re.M)
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-fA-F]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_BOOT = (os.path.join("trainjob", "session", "rank.py"), "<frozen runpy>", os.sep + "runpy.py")
"""What calls the user's script."""
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']+)'\n\s*what\(\):\s+(?P<said>.+)")
"""The C++ run-time's words for an exception that nobody caught: SIGABRT follows."""
_SOURCE = re.compile(r"^\[(enforce fail at )?\S+:\d+\]\s*")
TYPE = "Fatal Python error"


def of(tail: str) -> Optional[RankError]:
    """What it was, and where the thread that crashed stood, as a traceback has it: the innermost frame last. None: it
    wrote no such thing (faulthandler off, killed from outside).
    """
    begins = list(_BEGIN.finditer(tail))
    if not begins:
        return None
    kind, what = TYPE, begins[-1]["what"]
    frames = _frames(tail[begins[-1].end() :].splitlines())
    thrown = list(_THROWN.finditer(tail, begins[-2].end() if len(begins) > 1 else 0))
    if thrown:
        kind, what = thrown[-1]["type"], _SOURCE.sub("", thrown[-1]["said"].strip()).replace(" . ", ". ")
    lines = ["Traceback (most recent call last):", *reversed(frames)] if frames else []
    return {
        "type": kind,
        "message": what,
        "traceback": "\n".join([*lines, f"{kind}: {what}"]),
        "communication": False,
    }


def _frames(lines: List[str]) -> List[str]:
    """Of the thread that crashed, innermost first. Where that is none of Python's (gloo's own, say): of the rank's main
    thread, which waits for it.
    """
    crashed: List[str] = []
    main: List[str] = []
    thread: List[str] = []
    current = False
    for line in lines:
        begins, frame = _THREAD.match(line), _FRAME.match(line)
        if begins is not None:
            current, thread = begins["current"] == "Current thread", []
        elif frame is not None and frame["file"].endswith(_BOOT):
            main = thread
        elif frame is not None:
            thread.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}')
            crashed = thread if current else crashed
        elif crashed:
            break
        else:
            thread = []
    return crashed or main
