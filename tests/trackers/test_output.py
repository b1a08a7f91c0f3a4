"""What trackers' libraries print: a log has room for so much, and our own words always come through."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.patience import HANG_S
from trainjob.trackers import output
from trainjob.trackers.output import AGAIN, BURST, LINE_LIMIT, RATE, Room

LINE = b"x" * 99 + b"\n"


def test_what_fits_passes_as_it_is() -> None:
    room = Room(0.0)
    assert room.take(b"one\ntw", 0.0) == b"one\n"
    assert room.take(b"o\n", 1.0) == b"two\n" and not room.is_full
    assert room.take(b"no end", 2.0) == b"" and room.rest() == b"no end\n"
    assert room.rest() == b""


def test_what_is_too_much_is_counted_and_said_once_there_is_room() -> None:
    room = Room(0.0)
    flood = LINE * (2 * BURST // len(LINE))
    passed = room.take(flood, 0.0)
    assert BURST - len(LINE) < len(passed) <= BURST and room.is_full
    assert room.take(LINE, 0.0) == b""
    left_out = (len(flood) - len(passed)) // len(LINE) + 1
    assert room.take(b"too soon\n", AGAIN / RATE - 1) == b""
    said = room.take(b"later\n", AGAIN / RATE)
    assert (
        said
        == (
            f"tj  | tracking: {left_out + 1} lines that trackers print are left out here: their libraries print more than "
            f"{RATE} bytes a second\nlater\n"
        ).encode()
    )
    assert not room.is_full


def test_in_the_long_run_it_passes_its_rate() -> None:
    for line in (LINE, b"x\n"):
        room, seconds = Room(0.0), 600
        room.take(line * BURST, 0.0)
        passed = sum(len(room.take(line * 300, float(second))) for second in range(1, seconds))
        assert seconds * RATE / 2 < passed < seconds * (RATE + 10), "with what is said of it"


def test_our_own_words_always_pass() -> None:
    room = Room(0.0)
    room.take(LINE * (2 * BURST // len(LINE)), 0.0)
    assert room.take(b"tj  | MLflowLogger: it is away\n" + LINE, 0.0) == b"tj  | MLflowLogger: it is away\n"


def test_a_line_without_an_end_takes_no_memory() -> None:
    room = Room(0.0)
    passed = room.take(b"y" * (LINE_LIMIT + 5), 0.0)
    assert passed == b"y" * LINE_LIMIT + b"\n" and room.rest() == b"y" * 5 + b"\n"


PROGRAM = """
import os, sys
from trainjob.trackers import output
with output.bounded():
    print("to stdout", flush=True)
    os.write(2, b"from a native library")
    os.system("echo from a child")
    BODY
print("behind it", flush=True)
"""


def came_of(body: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("BODY", body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S)


def test_all_of_a_process_goes_through_it() -> None:
    ran = came_of("pass")
    assert ran.stderr == "to stdout\nfrom a native libraryfrom a child\n" and ran.stdout == "behind it\n"


def test_a_traceback_is_there_in_full() -> None:
    ran = came_of("raise ValueError('unlucky')")
    assert ran.stderr.startswith("to stdout\n") and ran.stderr.endswith("ValueError: unlucky\n")


def test_a_child_that_stays_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "DRAIN_S", 0.1)
    kept = os.dup(1), os.dup(2)
    try:
        with output.bounded():
            child = subprocess.Popen(["sleep", "600"])
        assert child.poll() is None
        child.kill()
        child.wait()
        assert [os.fstat(fd).st_ino for fd in kept] == [os.fstat(fd).st_ino for fd in (1, 2)]
    finally:
        for fd in kept:
            os.close(fd)
