"""The Python stacks of all threads of this process, in faulthandler's form, but read with the interpreter's lock held.

faulthandler reads other threads' frames while those run, and ends the process where one is gone under its hands: it is
for a crash, and of a process that lives for the one thread that the signal came to (`stacks`).
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Dict, List, Optional, Tuple

_THREADS_LIMIT = 100
_FRAMES_LIMIT = 100
"""Of one thread, the innermost. Both as faulthandler has them."""
_TEXT_LIMIT = 500
"""Characters of a file's or a function's name."""
_MORE = "..."
_Place = Tuple[CodeType, Optional[int]]
"""And the line."""


def of_all(but: int) -> str:
    """Of all threads but the one with this identity (the caller's own): the one that began last first, the main one
    last.
    """
    found = sys._current_frames()  # in the order in which they began, the last one first
    found.pop(but, None)
    *others, main = found
    shown = [*others[: _THREADS_LIMIT - 1], main]
    # The main thread's first: whoever has a frame has all that its function has, which then goes later, and here.
    places = {identity: _places(identity, found) for identity in reversed(shown)}
    found.clear()
    texts = [_thread(identity, places[identity]) for identity in shown]
    if len(others) >= _THREADS_LIMIT:
        texts.insert(-1, _MORE)
    return "\n\n".join(texts)


def _places(identity: int, found: Dict[int, FrameType]) -> List[_Place]:
    """Of one thread, which is found no more: one more than are shown, if there are."""
    places: List[_Place] = []
    frame: Optional[FrameType] = found.pop(identity)
    while frame is not None and len(places) <= _FRAMES_LIMIT:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return places


def _thread(identity: int, places: List[_Place]) -> str:
    thread = threading._active.get(identity)  # type: ignore[attr-defined]  # enumerate() would wait for a lock
    # Not `thread.name`, which may be the program's own.
    name = "" if thread is None else f" [{_shown(str(thread.__dict__.get('_name')))}]"
    lines = [f"Thread 0x{identity:016x}{name} (most recent call first):"]
    for code, line in places[:_FRAMES_LIMIT]:
        where = f'  File "{_shown(code.co_filename)}", line {"???" if line is None else line}'
        lines.append(f"{where} in {_shown(code.co_name)}")
    return "\n".join(lines if len(places) <= _FRAMES_LIMIT else [*lines, f"  {_MORE}"])


def _shown(text: str) -> str:
    """In one line, and with nothing that cannot be sent."""
    text = text[:_TEXT_LIMIT]
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
