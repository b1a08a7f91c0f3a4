"""The Python stacks of all threads of this process, in faulthandler's form, but read with the interpreter's lock held.

faulthandler reads other threads' frames while those run, and ends the process where one is gone under its hands: it is
for a crash, and of a process that lives for the one thread that the signal came to (`stacks`).
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import List, Optional

_THREADS_LIMIT = 100
_FRAMES_LIMIT = 100
"""Of one thread, the innermost. Both as faulthandler has them."""
_TEXT_LIMIT = 500
"""Characters of a file's or a function's name."""
_MORE = "..."


def of_all(but: int) -> str:
    """Of all threads but the one with this identity (the caller's own): the one that began last first, the main one
    last.
    """
    found = sys._current_frames()  # in the order in which they began, the last one first
    found.pop(but, None)
    *others, main = found.items()
    texts = [_thread(identity, frame) for identity, frame in others[: _THREADS_LIMIT - 1]]
    if len(others) >= _THREADS_LIMIT:
        texts.append(_MORE)
    return "\n\n".join([*texts, _thread(*main)])


def _thread(identity: int, frame: Optional[FrameType]) -> str:
    thread = threading._active.get(identity)  # type: ignore[attr-defined]  # enumerate() would wait for a lock
    name = "" if thread is None else f" [{_shown(str(thread.name))}]"
    lines: List[str] = [f"Thread 0x{identity:016x}{name} (most recent call first):"]
    while frame is not None:
        if len(lines) > _FRAMES_LIMIT:
            lines.append(f"  {_MORE}")
            break
        code, line = frame.f_code, frame.f_lineno
        where = f'  File "{_shown(code.co_filename)}", line {"???" if line is None else line}'
        lines.append(f"{where} in {_shown(code.co_name)}")
        frame = frame.f_back
    return "\n".join(lines)


def _shown(text: str) -> str:
    """In one line, and with nothing that cannot be sent."""
    text = text[:_TEXT_LIMIT]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
