"""What is written to streams that take nothing for a while."""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainjob.screen import display as displays
from trainjob.screen import streams

WRITES = """
import resource, signal, sys
from trainjob.screen import streams
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
full = open(sys.argv[1], "a")
streams.write(full, "first")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
streams.write(full, "second")
streams.write(full, "third")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
streams.write(full, "fourth")
streams.write(full, "fifth")
"""


@pytest.mark.parametrize(
    ("room", "there"),
    [
        (6, ["tj  | lines missing here: 2 (the disk of this output was full)"]),
        (8, ["second", "tj  | lines missing here: 1 (the disk of this output was full)"]),
    ],
)
def test_lines_for_which_a_disk_has_no_room_are_left_out_and_counted(
    tmp_path: Path, room: int, there: list[str]
) -> None:
    """One of which half is there is finished."""
    log = tmp_path / "train.log"
    subprocess.run([sys.executable, "-c", WRITES, str(log), str(room)], check=True)
    assert log.read_text().splitlines() == ["first", *there, "fourth", "fifth"]


def test_a_full_disk_does_not_change_how_a_command_ends() -> None:
    """Python flushes at the end what its streams hold."""
    code = "import sys; from trainjob.screen import streams; streams.write(sys.stdout, 'a line')"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=full).returncode == 0


SAYS = """
import os, sys
from trainjob.screen import streams
data = open(sys.argv[1], "w")
assert data.fileno() == 2
streams.have_all()
streams.say("the job's name is digits")
"""


def test_what_a_program_without_standard_error_has_opened_is_not_written_to(tmp_path: Path) -> None:
    """Its first file has that number."""
    data = tmp_path / "results.csv"
    subprocess.run([sys.executable, "-c", SAYS, str(data)], check=True, preexec_fn=lambda: os.close(2))
    assert data.read_text() == ""


FILLS = """
import os, sys
from trainjob.screen import streams
os.set_blocking(1, False)
filled = 0
try:
    while True:
        filled += os.write(1, b"-" * 4096)
except BlockingIOError:
    print(filled, file=sys.stderr, flush=True)
print()  # of the program, which stands in the stream's buffer
streams.write(sys.stdout, "one")
streams.write(sys.stdout, "two" * 1000000)
streams.write(sys.stdout, "three")
"""


@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_pipe_that_does_not_block_and_is_full_is_waited_for_and_has_each_text_once(options: list[str]) -> None:
    """Whoever shares it may have made it so."""
    with subprocess.Popen(
        [sys.executable, *options, "-c", FILLS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        filled = int(writer.stderr.readline())
        shown, said = writer.stdout.read(), writer.stderr.read()
    assert (writer.returncode, said) == (0, b"")
    assert shown[filled:].split(b"\n")[-4:] == [b"one", b"two" * 1000000, b"three", b""]


@dataclass
class Tee:
    """As a program puts it in the place of its output. It has no hash, and no descriptor."""

    legs: list[Any]

    def write(self, text: str) -> None:
        """To each."""
        for leg in self.legs:
            leg.write(text)


def test_an_object_of_the_programs_own_is_written_to() -> None:
    for make in (Tee, lambda legs: Tee([Tee(legs)]), lambda legs: codecs.getwriter("ascii")(Bytes(legs[0]))):
        log = io.StringIO()
        stream: Any = make([log])
        streams.write(stream, "a line, \u00fcber")
        assert log.getvalue() in ("a line, \u00fcber\n", "a line, ?ber\n")


class Bytes(io.RawIOBase):
    """Text of bytes."""

    def __init__(self, log: io.StringIO) -> None:
        self._log = log

    def write(self, data: Any) -> int:
        """Passed on."""
        return self._log.write(bytes(data).decode())


class Raises:
    """Whatever it is that a program has put in the place of its output."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.log = ""

    def write(self, text: str) -> None:
        """It cannot, for now."""
        if self.error is not None:
            raise self.error
        self.log += text


@pytest.mark.parametrize("error", [RuntimeError(), BrokenPipeError(), BlockingIOError(), OSError(errno.ENOSPC, "full")])
def test_what_an_object_of_the_programs_own_raises_ends_nothing(error: Exception) -> None:
    raises = Raises(error)
    stream: Any = raises
    streams.write(stream, "one")
    streams.write(stream, "two")
    raises.error = None
    streams.write(stream, "three")
    first, *rest = raises.log.splitlines()
    assert first.startswith("tj  | lines missing here: 2 (") and rest == ["three"]


def test_a_stream_that_the_program_has_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("stdout", "stderr"):
        stream = (tmp_path / name).open("w")
        stream.close()
        monkeypatch.setattr(sys, name, stream)
    display = displays.choose(plain=False)
    display.line("r00 | a line")
    display.note("a note")
    streams.say("a word")
    display.close()


def test_what_a_stream_has_not_taken_is_not_said_on_another_one() -> None:
    """Of which the place in memory may be the same."""
    before = len(streams._owed)
    stream: Any = Raises(RuntimeError())
    streams.write(stream, "one")
    assert len(streams._owed) == before + 1
    del stream
    gc.collect()  # what it raised holds it
    assert len(streams._owed) == before
