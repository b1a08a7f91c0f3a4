"""Why a process gives no stack, and how long one is waited for."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.scenario import wait_until
from trainjob.agent.hangs import grouping
from trainjob.agent.processes.stacks import ALONE, MORE, POLL_S, TEXT_LIMIT, stack_of, state_letter
from trainjob.cli.local import stack
from trainjob.launch.local.ranks import RankProcess
from trainjob_api import contract

RANK = """
import faulthandler, signal, sys
faulthandler.register(getattr(signal, sys.argv[2]), open(sys.argv[1], "a"), all_threads=False)
print("ready", flush=True)
sys.stdin.read()
"""
ANSWERS = """
import sys
from trainjob.session import stacks
stacks.make_readable()
print("ready", flush=True)
sys.stdin.read()
"""
"""As a rank does."""
MANY_THREADS = """
import threading
def waits_in_a_thread(depth, forever=threading.Event()):
    waits_in_a_thread(depth - 1) if depth else forever.wait()
for _ in range({count}):
    threading.Thread(target=waits_in_a_thread, args=(20,), daemon=True).start()
"""
SLOW_WRITER = """
import signal, sys, time
def write(*_):
    # The kernel does this for a handler such as faulthandler's.
    signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, sys.argv[2])])
    with open(sys.argv[1], "a") as file:
        for line in ('Thread 0x01 (most recent call first):', '  File "a.py", line 1 in wait', '',
                     'Current thread 0x02 (most recent call first):', '  File "a.py", line 9 in <module>'):
            print(line, file=file, flush=True)
            time.sleep({pause})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, sys.argv[2])])
signal.signal(getattr(signal, sys.argv[2]), write)
kept = open(sys.argv[1], "a")
print("ready", flush=True)
while True:
    time.sleep(10)
"""
DEAF_THREAD = """
import signal, threading
def deaf(begun):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    begun.set()
    threading.Event().wait()
begun = threading.Event()
threading.Thread(target=deaf, args=(begun,), daemon=True).start()
begun.wait()
"""
DEAF_MAIN = """
signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, sys.argv[2])])
"""
CLOSES_ALL = """
import os
os.closerange(3, 64)
kept = [open(sys.argv[3], "w") for _ in range(8)]
"""


@contextmanager
def process(tmp_path: Path, before: str = "", after: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Stands where it waits for its end of input, and gives its stack on the signal."""
    script = before + RANK.replace("print(", f"{after}print(")
    with started(tmp_path, script) as found:
        yield found


@contextmanager
def answers(tmp_path: Path, before: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same, by itself too."""
    with started(tmp_path, before + ANSWERS) as found:
        yield found


@contextmanager
def started(tmp_path: Path, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Has said that it is ready; its end is ours."""
    path = tmp_path / contract.STACK_FILE.format(rank=0)
    words = [sys.executable, "-c", script, str(path), contract.STACK_SIGNAL_NAME, str(tmp_path / "other")]
    env = {**os.environ, contract.ENV_STACK_FOLDER: str(tmp_path), contract.ENV_RANK: "0"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as found:
        try:
            assert found.stdout is not None and found.stdout.readline() == b"ready\n"
            yield found
        finally:
            found.kill()


def test_a_person_gets_the_stack_of_a_rank_that_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "WAIT_S", HANG_S)
    with process(tmp_path) as rank:
        rank.send_signal(signal.SIGSTOP)
        late = threading.Timer(1.5, rank.send_signal, [signal.SIGCONT])
        late.start()
        try:
            texts = asyncio.run(stack._ask([RankProcess(0, rank.pid, str(tmp_path))]))
        finally:
            late.join()
    assert "in <module>" in texts[0]


def ask(rank: subprocess.Popen[bytes], folder: Path, limit: int = TEXT_LIMIT) -> str:
    """Its own answer, as often as it takes on a busy machine."""
    while (text := asyncio.run(stack_of(0, rank.pid, str(folder), limit, 2.0))).startswith((ALONE, "gives no")):
        assert rank.poll() is None, text
    return text


@pytest.mark.parametrize("threads", [5, 40, 120])
@pytest.mark.parametrize("limit", [TEXT_LIMIT, 1 << 20])
def test_of_many_threads_the_main_one_is_shown(tmp_path: Path, threads: int, limit: int) -> None:
    with answers(tmp_path, MANY_THREADS.format(count=threads)) as rank:
        text = ask(rank, tmp_path, limit)
    assert grouping.main_thread(text)[-1].function == "<module>" and len(text) < limit + 100
    assert text.count("(most recent call first)") == threads + 1 or threads == 120 or limit == TEXT_LIMIT
    assert grouping.is_cut(text) == (threads > 5 and limit == TEXT_LIMIT)
    assert (f"\n{MORE}\n" in text) == (threads == 120)


BUSY = """
import json, threading
def deep(depth, what):
    return deep(depth - 1, what) if depth else json.loads(json.dumps(what))
def works():
    while True:
        deep(60, {"a": list(range(30))})
def starts_threads():
    while True:
        each = threading.Thread(target=deep, args=(30, {"a": 1}))
        each.start()
        each.join()
for work in (works, works, starts_threads):
    threading.Thread(target=work, daemon=True, name=work.__name__).start()
"""


def test_threads_that_run_meanwhile_do_no_harm(tmp_path: Path) -> None:
    """Whoever reads their frames without the interpreter's lock ends the process within a few tries."""
    with answers(tmp_path, BUSY) as rank:
        for _ in range(30):
            assert grouping.main_thread(ask(rank, tmp_path))[-1].function == "<module>"
        for _ in range(200):
            rank.send_signal(signal.SIGUSR2)
            asyncio.run(asyncio.sleep(0.002))
        text = ask(rank, tmp_path)
        assert rank.poll() is None
    assert "[works] (most recent call first):" in text and "[MainThread] (most" in text


NAMES = """
import threading
code = compile("import threading; threading.Event().wait()", "a\\nb \\udc80 \\u00e9.py", "exec")
threading.Thread(target=exec, args=(code,), daemon=True, name="x\\ny").start()
"""


def test_names_that_are_no_text_are_shown_in_a_line(tmp_path: Path) -> None:
    with answers(tmp_path, NAMES) as rank:
        text = ask(rank, tmp_path)
    assert r"[x\ny] (most" in text and r'File "a\nb \udc80 \xe9.py", line 1 in <module>' in text, text


def test_the_main_thread_alone_is_told_of_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    with process(tmp_path, MANY_THREADS.format(count=3)) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=HANG_S))
    assert text.startswith(ALONE) and "waits_in_a_thread" not in text
    assert [frame.function for frame in grouping.main_thread(text)] == ["<module>"]


def test_a_main_thread_that_holds_the_signal_off_is_not_mistaken(tmp_path: Path) -> None:
    with process(tmp_path, MANY_THREADS.format(count=1), after=DEAF_MAIN) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=0.5))
    assert text == "gives no stack: its main thread does not answer, and holds off SIGUSR2"


def test_a_stack_whose_writer_stands_still_in_the_middle_is_waited_for(tmp_path: Path) -> None:
    with started(tmp_path, SLOW_WRITER.format(pause=5 * POLL_S)) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=HANG_S))
    assert [frame.function for frame in grouping.main_thread(text)] == ["<module>"]
    assert not grouping.is_cut(text)


def test_a_stack_that_is_not_whole_in_time_says_that_there_is_more(tmp_path: Path) -> None:
    with started(tmp_path, SLOW_WRITER.format(pause=HANG_S)) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=2.0))
    assert grouping.is_cut(text) and "\nThread 0x01" in text


def test_a_thread_that_hears_no_signals_keeps_nobody_waiting(tmp_path: Path) -> None:
    with process(tmp_path, DEAF_THREAD) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=HANG_S))
    assert grouping.main_thread(text)[-1].function == "<module>" and not grouping.is_cut(text)


def test_a_short_stack_is_whole(tmp_path: Path) -> None:
    with process(tmp_path) as rank:
        text = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=HANG_S))
    assert text and not grouping.is_cut(text)


def test_a_file_that_has_the_stack_files_number_by_now_is_not_written_to(tmp_path: Path) -> None:
    with process(tmp_path, after=CLOSES_ALL) as rank:
        said = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=HANG_S))
    assert said == "gives no stack: its program has closed the file for it (os.closerange?)"
    assert (tmp_path / "other").read_text() == ""


def test_a_rank_that_a_debugger_holds_is_told_with_it(tmp_path: Path) -> None:
    attach, detach = 16, 17
    libc = ctypes.CDLL(None, use_errno=True)
    with process(tmp_path) as rank:
        if libc.ptrace(attach, rank.pid, None, None) != 0:
            pytest.skip(f"nobody may trace here: {os.strerror(ctypes.get_errno())}")
        try:
            os.waitpid(rank.pid, os.WUNTRACED)
            wait_until(lambda: state_letter(rank.pid) == "t")
            said = asyncio.run(stack_of(0, rank.pid, str(tmp_path), wait_s=0.1))
        finally:
            libc.ptrace(detach, rank.pid, None, None)
    assert said == f"gives no stack within 0.1 s: a debugger or tracer holds it (TracerPid {os.getpid()})"
