"""Whether a process does anything, by what the kernel counts of it: processes that wait, and such that work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.operators import eventually
from trainjob.agent.processes.vitals import NOT_QUIET, Quiet, Stillness, Vitals, quiet, vitals

AT = Vitals(b"7", 100, 200, 30, 5000, False)
LOOK_S = 0.6
IDLE = {
    "a read that nobody answers": "open(sys.argv[1], 'rb').read()",
    "a lock that nobody opens": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}
SLEEPS = "time.sleep(600)"
BUSY = {
    "a loop": "while True: pass",
    "a long call in C": "sum(range(10**11))",
    "a slow disk, read by pieces": "while True:\n    open('/proc/self/stat').read(); time.sleep(0.01)",
    "a child that works": "import subprocess; subprocess.run([sys.executable, '-c', 'while True: pass'])",
    "a thread that works": "thread = threading.Thread(target=lambda: [0 for _ in iter(int, 1)]); "
    "thread.start(); thread.join()",
}


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


def look(folder: Path, code: str, ended: list[subprocess.Popen[str]]) -> Quiet:
    """What is said of a process that does this."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    program = f"import sys, threading, time\nprint('there', flush=True)\n{code}"
    command = [sys.executable, "-c", program, str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    ended.append(process)
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    rule, pids = Stillness(), {0: process.pid}

    def once(look_s: float = LOOK_S) -> Quiet:
        began = time.monotonic()
        rule.settle(began, pids)
        time.sleep(look_s)
        return rule.since(time.monotonic(), pids)[0]

    if code in (SLEEPS, *IDLE.values()):
        return eventually(lambda: found if (found := once()).all_s else None, "it waits")
    once()
    once()
    for times in (1, 4, 16):
        found = once(times * LOOK_S)
        if not found.all_s:  # where others want the processor too, it may get none for a moment
            break
    return found


@pytest.mark.parametrize("what", IDLE)
def test_a_process_that_waits_for_what_does_not_come_is_quiet(
    tmp_path: Path, what: str, ended: list[subprocess.Popen[str]]
) -> None:
    found = look(tmp_path, IDLE[what], ended)
    assert found.main_s == found.all_s >= LOOK_S


def test_one_long_sleep_is_told_apart(tmp_path: Path, ended: list[subprocess.Popen[str]]) -> None:
    found = look(tmp_path, SLEEPS, ended)
    assert found.sleeps and found.all_s >= LOOK_S


@pytest.mark.parametrize("what", BUSY)
def test_one_that_works_is_not(tmp_path: Path, what: str, ended: list[subprocess.Popen[str]]) -> None:
    assert look(tmp_path, BUSY[what], ended).all_s == 0


def test_a_process_that_is_gone_is_not_quiet() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rule = Stillness()
    rule.settle(0.0, {0: child.pid})
    child.kill()
    child.wait()
    assert vitals(child.pid) is None and rule.since(5.0, {0: child.pid}) == {0: NOT_QUIET}


def test_a_rank_that_was_not_looked_at_before_has_no_word() -> None:
    assert Stillness().since(5.0, {0: os.getpid()}) == {}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (AT, Quiet(5.0, 5.0)),
        (AT._replace(main_ticks=101), Quiet(5.0, 5.0)),
        (AT._replace(main_ticks=102), NOT_QUIET),
        (AT._replace(all_ticks=206), Quiet(5.0, 5.0)),
        (AT._replace(all_ticks=207), Quiet(5.0, 0.0)),
        (AT._replace(all_ticks=199), Quiet(5.0, 0.0)),
        (AT._replace(wakes=31), Quiet(5.0, 0.0)),
        (AT._replace(sleeps=True), Quiet(5.0, 5.0, sleeps=True)),
        (AT._replace(sleeps=True, wakes=31), Quiet(5.0, 0.0)),
        (AT._replace(bytes=5000 + 64 * 1024), Quiet(5.0, 5.0)),
        (AT._replace(bytes=5001 + 64 * 1024), NOT_QUIET),
        (AT._replace(born=b"8"), NOT_QUIET),
        (None, NOT_QUIET),
    ],
)
def test_what_counts(now: Vitals | None, said: Quiet) -> None:
    assert quiet(AT, now, 5.0) == said
