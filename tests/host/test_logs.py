"""Log lines: one object a line, the job's key, and libraries that do not drown it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from trainjob_operator.process.logs import FIELDS, QUIET, REPEAT_AFTER_S, Library, set_up


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_a_json_line_carries_everything(stream: io.StringIO) -> None:
    set_up("json", "info", stream)
    logging.getLogger("trainjob_operator.loop.reconciler").info(
        "%s: attempt 2 began", "team/digits", extra={"job": "team/digits", "why": "attempt 2 began"}
    )
    line = json.loads(stream.getvalue())
    assert line["level"] == "info"
    assert line["logger"] == "trainjob_operator.loop.reconciler"
    assert line["message"] == "team/digits: attempt 2 began"
    assert line["job"] == "team/digits"
    assert line["why"] == "attempt 2 began"
    assert set(line) <= set(FIELDS)
    assert line["time"].endswith("Z")


def test_a_traceback_stays_in_its_line(stream: io.StringIO) -> None:
    set_up("json", "info", stream)
    try:
        raise ValueError("broken\nlines \ud800")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    (only,) = stream.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(only)["error"]


def test_text_cannot_be_forged_by_what_it_quotes(stream: io.StringIO) -> None:
    set_up("text", "info", stream)
    logging.getLogger("x").warning("a pod says: %s", "hi\n2026-01-01T00:00:00Z ERROR root: \x1b[2Jforged")
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_levels(stream: io.StringIO) -> None:
    set_up("json", "warning", stream)
    logging.getLogger("x").info("no")
    logging.getLogger("x").warning("yes")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["yes"]


def test_a_library_speaks_of_trouble_only_and_not_over_and_over(stream: io.StringIO) -> None:
    set_up("json", "debug", stream)
    kopf = logging.getLogger("kopf.objects")
    kopf.info("Handler 'job_changed' succeeded.")
    kopf.warning("OS signals are ignored: running not in the main thread.")
    for attempt in range(5):
        kopf.error("Request attempt #%d failed; will retry", attempt)
    try:
        raise ValueError("deep inside")
    except ValueError:
        kopf.exception("another thing")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "Request attempt #0 failed; will retry",
        "another thing",
    ]
    assert "deep inside" not in stream.getvalue()


def test_a_librarys_line_comes_again_after_a_while() -> None:
    now = 0.0
    library = Library(lambda: now)
    record = logging.LogRecord("kopf", logging.ERROR, "f.py", 7, "no answer", None, None)
    ours = logging.LogRecord("trainjob_operator", logging.ERROR, "f.py", 7, "no answer", None, None)
    assert library.filter(record)
    assert not library.filter(record)
    assert library.filter(ours) and library.filter(ours)
    now = REPEAT_AFTER_S
    assert library.filter(record)
