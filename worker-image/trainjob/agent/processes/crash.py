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
TYPE = "Fatal Python error"


def of(tail: str) -> Optional[RankError]:
    """What it was, and where the thread that crashed stood, as a traceback has it: the innermost frame last. None: it
    wrote no such thing (faulthandler off, killed from outside).
    """
    begins = list(_BEGIN.finditer(tail))
    if not begins:
        return None
    what, frames = begins[-1]["what"], _frames(tail[begins[-1].end() :].splitlines())
    lines = ["Traceback (most recent call last):", *reversed(frames)] if frames else []
    return {
        "type": TYPE,
        "message": what,
        "traceback": "\n".join([*lines, f"{TYPE}: {what}"]),
        "communication": False,
    }


def _frames(lines: List[str]) -> List[str]:
    """Of the current thread, innermost first."""
    found: List[str] = []
    current = False
    for line in lines:
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread is not None:
            if current:
                break
            current = thread["current"] == "Current thread"
        elif current and frame is not None and not frame["file"].endswith(_BOOT):
            found.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}')
        elif current and frame is None:
            break
    return found
