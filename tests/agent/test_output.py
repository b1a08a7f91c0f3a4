"""Lines of ranks: split, bounded, and what a progress bar leaves behind."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainjob.agent.processes import output
from trainjob.agent.processes.output import LINE_LIMIT, Console, LineSplitter, LogFile, RankOutput


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


def test_a_reader_that_stops_reading_fills_the_console_but_never_blocks_us() -> None:
    reading, writing = os.pipe()
    console = Console(writing)
    room = threading.Event()
    console.on_room = room.set
    for _ in range(30):
        console.write(b"x" * 65535 + b"\n")
    assert console.full
    got = 0
    while got < 30 * 65536:
        got += len(os.read(reading, 1 << 20))
    assert room.wait(10) and not console.full
    os.close(reading)
    console.write(b"nobody reads\n")
    console.close(5)
    os.close(writing)


def test_a_rank_waits_for_a_console_that_is_full_and_loses_no_line(tmp_path: Path) -> None:
    async def run() -> None:
        reading, writing = os.pipe()
        slow, console_end = os.pipe()
        console = Console(console_end)
        rank_output = RankOutput(asyncio.get_running_loop(), reading, "r00 | ", console, LogFile(str(tmp_path / "log")))
        loop = asyncio.get_running_loop()
        console.on_room = lambda: (loop.call_soon_threadsafe(rank_output.resume), None)[1]
        text = b"".join(b"%07d\n" % i for i in range(400_000))

        def print_all() -> None:
            view = memoryview(text)
            while view:
                view = view[os.write(writing, view) :]
            os.close(writing)

        def read_all() -> bytes:
            got = b""
            while len(got) < len(text) + 400_000 * len("r00 | "):
                got += os.read(slow, 1 << 20)
            return got

        printing = asyncio.ensure_future(asyncio.to_thread(print_all))
        while not console.full:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not printing.done(), "the rank waits, the agent does not"
        got = await asyncio.wait_for(asyncio.to_thread(read_all), 30)
        await asyncio.wait_for(rank_output.ended, 10)
        assert got == b"".join(b"r00 | " + line + b"\n" for line in text.splitlines())
        assert (tmp_path / "log").read_bytes() == text
        console.close(5)
        for fd in (slow, console_end):
            os.close(fd)

    asyncio.run(run())


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
