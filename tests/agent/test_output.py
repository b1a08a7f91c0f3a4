"""Lines of ranks: split, bounded, and what a progress bar leaves behind."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.background import no_fault
from support.patience import HANG_S
from trainjob.agent.background import Background
from trainjob.agent.processes import output, ranks
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.lines import LINE_LIMIT, LineSplitter
from trainjob.agent.processes.output import LogFile, RankOutput
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.reaper import Reaper
from trainjob_api import contract


def lines(*chunks: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def test_lines_are_put_together_from_pieces() -> None:
    assert lines(b"one\ntw", b"o\n\nthr", b"ee") == [b"one", b"two", b"", b"three"]


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert lines(b"\r 10%", b"\r 50%\r", b"100%\r\nnext\n") == [b"100%", b"next"]


def test_carriage_return_line_ends_are_line_ends() -> None:
    assert lines(b"one\r\ntwo\r\n") == [b"one", b"two"]


def test_an_endless_line_comes_in_pieces() -> None:
    found = lines(*[b"x" * 10_000] * 10)
    assert sum(map(len, found)) == 100_000 and max(map(len, found)) <= LINE_LIMIT


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_nothing_is_lost_without_carriage_returns(chunks: list[bytes]) -> None:
    text = b"".join(chunks).replace(b"\r", b"")
    assert b"\n".join(lines(*(c.replace(b"\r", b"") for c in chunks))) == (text.removesuffix(b"\n") if text else b"")


def test_a_progress_bar_is_shown_while_it_moves() -> None:
    splitter, found = LineSplitter(), []
    for second in range(10):
        found.append(splitter.feed(b"\r%3d%%" % (second * 10), float(second)))
    assert [line for lines in found for line in lines] == [b" 10%", b" 30%", b" 50%", b" 70%"]
    assert splitter.feed(b"\r100%\n", 10.0) == [b"100%"]
    assert splitter.feed(b"\r 10%\r", 11.0) == [] and splitter.feed(b"", 13.0) == [b" 10%"]
    assert splitter.feed(b"\n", 13.5) == [], "what is shown already is not said twice"
    assert splitter.feed(b"\n", 14.0) == [b""]


@given(st.text(min_size=1, max_size=8), st.integers(0, 3), st.sampled_from(["", "\n"]))
def test_no_character_is_cut(text: str, shift: int, end: str) -> None:
    line = "x" * shift + text.replace("\n", "").replace("\r", "") * 3000 + "\u20ac\U0001f600" * 6000
    pieces = lines((line + end).encode())
    assert all(len(piece) <= LINE_LIMIT for piece in pieces)
    assert "".join(piece.decode() for piece in pieces) == line, "each piece is UTF-8 by itself"


def print_all(fd: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


def read(fd: int, count: int) -> bytes:
    got = b""
    while len(got) < count:
        got += os.read(fd, 1 << 20)
    return got


def test_a_reader_that_stops_reading_fills_the_console_but_never_blocks_us() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    for _ in range(30):
        console.write(b"x" * 65535 + b"\n")
    assert console.full
    assert len(read(reading, 30 * 65536)) == 30 * 65536
    console.show([b"there is room again"])
    os.close(reading)
    console.write(b"nobody reads\n")
    console.close(5)
    os.close(writing)


def test_a_rank_waits_for_a_console_that_is_full_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.agent.processes.console.STUCK_S", 300.0)

    async def run() -> None:
        reading, writing = os.pipe()
        slow, console_end = os.pipe()
        console = Console(console_end)
        rank_output = RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, LogFile(str(tmp_path / "log")))
        text = b"".join(b"%07d\n" % i for i in range(400_000))
        printing = asyncio.ensure_future(asyncio.to_thread(print_all, writing, text))
        while not console.full:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not printing.done(), "the rank waits, the agent does not"
        got = await asyncio.wait_for(asyncio.to_thread(read, slow, len(text) + 400_000 * len("r00 | ")), HANG_S)
        await asyncio.wait_for(rank_output.shown, HANG_S)
        assert got == b"".join(b"r00 | " + line + b"\n" for line in text.splitlines())
        assert (tmp_path / "log").read_bytes() == text
        console.close(5)
        for fd in (slow, console_end):
            os.close(fd)

    asyncio.run(run())


class Closing(LogFile):
    """Made in an event loop, to which it tells when it is closed."""

    def __init__(self, path: str, closed: asyncio.Event) -> None:
        super().__init__(path)
        self._tell = partial(asyncio.get_running_loop().call_soon_threadsafe, closed.set)

    def close(self) -> None:
        super().close()
        self._tell()


def test_a_rank_has_ended_once_what_it_said_is_out(tmp_path: Path) -> None:
    """Who hears of its end looks there: so it is told no sooner, though it was read to its end long before."""

    async def run() -> None:
        reading, writing = os.pipe()
        stands, console_end = os.pipe()
        console, closed = Console(console_end), asyncio.Event()
        room = fcntl.fcntl(console_end, fcntl.F_GETPIPE_SZ)
        os.write(console_end, b"." * room)
        log = Closing(str(tmp_path / "log"), closed)
        rank_output = RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, log)
        os.write(writing, b"the last line\n")
        os.close(writing)
        await asyncio.wait_for(closed.wait(), HANG_S)
        console.reader.close(HANG_S)
        await asyncio.sleep(0)  # what the thread has ordered of this loop is done
        assert not rank_output.shown.done()
        last = b"r00 | the last line\n"
        assert (await asyncio.to_thread(read, stands, room + len(last)))[room:] == last
        await asyncio.wait_for(rank_output.shown, HANG_S)
        console.close(5)
        for fd in (stands, console_end):
            os.close(fd)

    asyncio.run(run())


def test_why_a_rank_could_not_start_is_told_though_the_thread_that_reads_it_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "LAST_WORDS_S", 0.05)
    monkeypatch.setattr(ranks, "READ_S", HANG_S)
    comes = threading.Event()

    async def run() -> Rank:
        console, rank = Console(os.open(os.devnull, os.O_WRONLY)), Rank(0, 0)
        reaper = Reaper(asyncio.get_running_loop())
        group = ranks.RankGroup(reaper, console, True, lambda rank: None, Background(no_fault))
        group.ranks = [rank]
        console.reader.order(lambda: comes.wait(HANG_S))
        words = [sys.executable, "-c", "import a_library_that_is_not_here"]
        group.start(rank, words, dict(os.environ), str(tmp_path / "log"), "r00 | ")
        while rank.ended_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # so late is it
        comes.set()
        await group.wait(HANG_S)
        console.reader.close(HANG_S)
        console.close(5)
        return rank

    rank = asyncio.run(run())
    assert rank.kind == contract.END_START and "a_library_that_is_not_here" in (rank.error or {}).get("message", "")


def test_a_console_that_nobody_reads_holds_no_rank_up_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.agent.processes.console.STUCK_S", 0.05)

    async def run() -> None:
        reading, writing = os.pipe()
        stuck, console_end = os.pipe()
        console = Console(console_end)
        closed = asyncio.Event()
        RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, Closing(str(tmp_path / "log"), closed))
        text = b"".join(b"%07d\n" % i for i in range(1_000_000))
        await asyncio.wait_for(asyncio.to_thread(print_all, writing, text), HANG_S)
        await asyncio.wait_for(closed.wait(), HANG_S)
        assert (tmp_path / "log").read_bytes() == text, "its own log has everything"
        got = await asyncio.to_thread(os.read, stuck, 1 << 20)
        while b"missing here" not in got:
            if not console.full:
                console.show([b"one more"])
            got += await asyncio.to_thread(os.read, stuck, 1 << 20)
        shown = [line for line in got.split(b"\n") if line.startswith(b"r00")]
        (word,) = [line for line in got.split(b"\n") if b"missing here" in line]
        assert len(shown) + int(word.split()[2]) == 1_000_000, "what is not shown is counted"
        console.close(5)
        for fd in (stuck, console_end):
            os.close(fd)

    asyncio.run(run())


def test_the_event_loop_never_writes_to_a_disk_that_hangs(tmp_path: Path) -> None:
    """A log whose writes block: here a pipe that nobody reads."""
    hanging, full = os.pipe()

    async def run() -> None:
        reading, writing = os.pipe()
        console = Console(os.open(os.devnull, os.O_WRONLY))
        log = LogFile(str(tmp_path / "log"))
        os.dup2(full, log._file.fileno())
        rank_output = RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, log)
        printing = asyncio.ensure_future(asyncio.to_thread(print_all, writing, b"x" * 400_000))
        for _ in range(1000):
            rank_output.note("a word of the agent\n")
            await asyncio.sleep(0)
        assert not printing.done() and rank_output.tail() == ""
        got = 0
        while got < 400_000:
            got += len(await asyncio.to_thread(os.read, hanging, 1 << 16))
        await printing
        console.close(0)

    asyncio.run(run())
    os.close(hanging)
    os.close(full)


def test_a_log_file_turns_over(tmp_path: Path) -> None:
    path = f"{tmp_path}/rank-0.log"
    before, output.LOG_LIMIT = output.LOG_LIMIT, 1000
    try:
        log = LogFile(path)
        for _ in range(30):
            log.write(b"x" * 99 + b"\n")
        log.close()
    finally:
        output.LOG_LIMIT = before
    assert os.path.getsize(path) <= 1000 and os.path.getsize(path + ".1") <= 1000


class Refusing(io.FileIO):
    """Of a disk that refuses what was written only as the file is closed, as NFS does at a quota."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_ranks_are_read_on_though_a_log_cannot_be_closed(tmp_path: Path) -> None:
    faults: list[BaseException] = []

    async def run() -> None:
        console = Console(os.open(os.devnull, os.O_WRONLY), on_fault=faults.append)
        for number in range(2):
            reading, writing = os.pipe()
            log = LogFile(str(tmp_path / "log"))
            log._file.close()
            log._file = Refusing(str(tmp_path / "log"), "a")
            rank = RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, log)
            os.write(writing, b"%d\n" % number)
            os.close(writing)
            await asyncio.wait_for(rank.shown, HANG_S)
            assert rank.read.done() and rank.tail() == str(number)
        console.close(5)

    asyncio.run(run())
    assert faults == [] and (tmp_path / "log").read_text() == "0\n1\n"


def test_a_fault_in_a_thread_is_told_and_ends_it() -> None:
    """An agent that nobody tells would wait for ranks that wait for a reader."""
    reading, writing = os.pipe()
    full = b"." * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    os.write(writing, full)
    faults: list[BaseException] = []
    console = Console(writing, on_fault=faults.append)

    def breaks() -> None:
        raise MemoryError

    console.reader.order(breaks)
    console.reader.close(HANG_S)
    assert list(map(type, faults)) == [MemoryError]
    console.write(b"a line\n")
    console.when_out(breaks)
    read(reading, len(full))
    console.close(HANG_S)
    assert list(map(type, faults)) == [MemoryError, MemoryError]


@pytest.mark.parametrize("name", ["console", "output"])
def test_a_thread_that_could_not_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At a limit of processes."""
    start, refused = threading.Thread.start, [name]

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    reading, writing = os.pipe()
    console, done = Console(writing), threading.Event()
    console.write(b"one\n")
    console.write(b"two\n")
    assert read(reading, 8) == b"one\ntwo\n"
    descriptors = os.listdir("/proc/self/fd")
    if name == "output":
        with pytest.raises(RuntimeError):
            console.reader.order(done.set)
        assert os.listdir("/proc/self/fd") == descriptors
    console.reader.order(done.set)
    assert done.wait(HANG_S)
    console.close(HANG_S)


def test_a_log_that_could_not_be_turned_over_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor for now costs what was written then, and no more."""
    monkeypatch.setattr(output, "LOG_LIMIT", 10)
    path, refusals = tmp_path / "log", [errno.EMFILE]
    log = LogFile(str(path))

    def opened(*how: Any, **fields: Any) -> Any:
        if refusals:
            raise OSError(refusals.pop(), "refused")
        return open(*how, **fields)

    monkeypatch.setattr(output, "open", opened, raising=False)
    for number in range(6):
        log.write(b"line %d\n" % number)
    log.close()
    kept = Path(f"{path}.1").read_text() + path.read_text()
    assert kept == "line 4\nline 5\n"


def test_a_turning_over_whose_old_log_cannot_be_closed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LOG_LIMIT", 10)
    path = tmp_path / "log"
    log = LogFile(str(path))
    log._file.close()
    log._file = Refusing(str(path), "a")
    log.write(b"line 0\n")
    log.write(b"line 1\n")
    log.close()
    assert (Path(f"{path}.1").read_text(), path.read_text()) == ("line 0\n", "line 1\n")
