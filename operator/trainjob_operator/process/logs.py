"""One log line an event, as JSON for machines or as text for people; what libraries say is kept to what matters.

Called once by `__main__.py`. A line about a job carries its key (`extra={"job": "namespace/name"}`).
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO

QUIET = {
    "kopf": logging.WARNING,
    "aiohttp": logging.WARNING,
    "asyncio": logging.WARNING,
    "kubernetes": logging.WARNING,
    "urllib3": logging.WARNING,
}
"""Libraries and what they must at least have to say."""
REPEAT_AFTER_S = 60.0
"""The same kind of line of a library comes at most this often."""
FIELDS = {
    "time": "UTC, to the millisecond",
    "level": "debug, info, warning, error or critical",
    "logger": "the part that speaks: `trainjob_operator...`, or a library",
    "message": "one sentence",
    "job": "`namespace/name`, where the line is about a job",
    "why": "the reason alone, where a job is told to go another way, or on",
    "error": "a traceback, where something happened that nobody expected",
}
"""Of a JSON line; others are not there."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
EXPECTED = ("OS signals are ignored", "Config not found")
"""Lines of libraries that tell what we want so, or say ourselves."""


def set_up(log_format: str, level: str, stream: IO[str]) -> None:
    """Send all logging of this process to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    handler.addFilter(Library())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


class JsonLines(logging.Formatter):
    """FIELDS; job, why and error where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("job", "why"):
            value = getattr(record, name, None)
            if isinstance(value, str):
                line[name] = value
        if record.exc_info:
            line["error"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(line)  # ASCII alone: no text from a pod can break the stream's encoding


class TextLines(logging.Formatter):
    """The same for eyes: one line, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        # A message may quote a manifest or a pod: what it holds must not look like a line of ours, nor move a
        # terminal's cursor.
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage())
        line = f"{_moment(record)} {record.levelname:<7} {record.name}: {message}"
        if record.exc_info:
            line += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return line


class Library(logging.Filter):
    """Lets a library's line pass, without its traceback, unless it is expected, or one of its kind (the same code)
    was said a moment ago.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in QUIET:
            return True
        if record.getMessage().startswith(EXPECTED):
            return False
        kind, now = (record.pathname, record.lineno), self._monotonic()
        if now - self._said.get(kind, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        self._said[kind] = now
        record.exc_info = record.exc_text = None  # its sentence is enough: the traceback is of code that is not ours
        return True


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
