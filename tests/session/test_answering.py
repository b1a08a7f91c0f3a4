"""That a rank is asked where it stands, or could be, changes nothing for its program."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob.session import frames
from trainjob_api import contract

RANK = """
import os, signal, socket, sys, time
from trainjob.session import stacks

def ask(folder=os.environ["TRAINJOB_STACK_FOLDER"], rank=0):
    with socket.socket(socket.AF_UNIX) as asker:
        asker.settimeout(5)
        asker.connect(os.path.join(folder, f"standing-{rank}"))
        with asker.makefile("rb") as answer:
            return answer.read()

def threads():
    return len(os.listdir("/proc/self/task"))

def until(true):
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)

stacks.make_readable()
"""


def goes_well(tmp_path: Path, script: str, *flags: str) -> None:
    """In a process that could be asked; nothing is printed."""
    program = tmp_path / "rank.py"
    program.write_text(RANK + textwrap.dedent(script))
    env = {**os.environ, contract.ENV_STACK_FOLDER: str(tmp_path), contract.ENV_RANK: "0"}
    ended = subprocess.run([sys.executable, *flags, program], env=env, capture_output=True, text=True, timeout=HANG_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


TAKES_NUMBERS = """
def take(free):
    os.dup2(0, free)
    os.close(free)
for _ in range(30):
    used = set(map(int, os.listdir("/proc/self/fd")))
    for free in set(range(3, 20)) - used:
        take(free)
    time.sleep(0.01)
"""


def test_every_number_that_is_no_open_file_is_the_programs(tmp_path: Path) -> None:
    goes_well(tmp_path, TAKES_NUMBERS)


CLOSES_ALL = """
stacks.answering._LOOKS_EVERY_S = 0.1
os.environ["RANK"] = "1"
stacks.make_readable()  # whose thread looks as often
for again in range(3):
    os.closerange(3, 64)
    own = [open(f"{sys.argv[0]}-{each}", "w") for each in range(8)]
    there = [os.fstat(file.fileno()).st_ino for file in own]
    if again < 2:
        try:
            ask(rank=1)
        except OSError:
            pass  # nobody is there
        until(lambda: threads() == 1)
    stacks.make_readable()
    assert ask(rank=1)
    until(lambda: threads() == 2)
    assert [os.fstat(file.fileno()).st_ino for file in own] == there
    for file in own:
        file.close()
"""


@pytest.mark.parametrize("flags", [(), ("-X", "dev")], ids=["plain", "dev"])
def test_what_has_the_number_of_the_socket_by_then_is_not_closed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    goes_well(tmp_path, CLOSES_ALL, *flags)


ONE_AFTER_THE_OTHER = """
counts = set()
for number in range(3):
    folder = os.path.join(os.path.dirname(sys.argv[0]), str(number))
    os.mkdir(folder)
    os.environ["TRAINJOB_STACK_FOLDER"] = folder
    stacks.make_readable()
    assert ask(folder)
    os.kill(os.getpid(), signal.SIGUSR2)
    until(lambda: os.path.getsize(os.path.join(folder, "stack-0")))
    stacks.forget()
    until(lambda: threads() == 1)
    counts.add(len(os.listdir("/proc/self/fd")))
assert len(counts) == 1, counts
"""


def test_a_process_that_is_many_ranks_in_a_row_answers_as_the_last_one_alone(tmp_path: Path) -> None:
    goes_well(tmp_path, ONE_AFTER_THE_OTHER)


NO_DESCRIPTOR = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
def take_all():
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            return taken
caller = socket.socket(socket.AF_UNIX)
taken = take_all()
caller.connect(os.path.join(os.path.dirname(sys.argv[0]), "standing-0"))
time.sleep(0.2)
for each in taken:
    os.close(each)
assert ask()
assert caller.recv(1)
caller.close()
stacks.answering.end()
until(lambda: threads() == 1)
taken = take_all()
stacks.make_readable()
for each in taken:
    os.close(each)
assert threads() == 1
"""


def test_a_rank_that_has_no_descriptor_left_answers_later_and_is_not_harmed(tmp_path: Path) -> None:
    goes_well(tmp_path, NO_DESCRIPTOR)


COMES_LAST = """
import atexit, os
def last():
    until(lambda: threads() == 1)
    os._exit(0)
atexit.register(last)
"""


def test_nobody_answers_any_more_while_python_takes_itself_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RANK", COMES_LAST + RANK)
    goes_well(tmp_path, "assert ask() and threads() == 2")


REPLACES = """
import threading
plain, others = socket.socket, []
class Replaced(plain):
    def __init__(self, *arguments, **named):
        if threading.current_thread() is not threading.main_thread():
            others.append(arguments)
        super().__init__(*arguments, **named)
socket.socket = Replaced
assert ask()
assert not others
"""


def test_whoever_asks_is_heard_by_no_class_of_the_programs(tmp_path: Path) -> None:
    goes_well(tmp_path, REPLACES)


FORKS = """
import warnings
warnings.simplefilter("ignore")  # Python 3.12 tells of forks where there are threads
def sockets():
    with os.scandir("/proc/self/fd") as found:
        return [each.name for each in found if os.path.islink(each) and "socket:" in os.readlink(each)]
assert len(sockets()) == 1
child = os.fork()
if child == 0:
    os._exit(len(sockets()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ask()
"""


def test_what_a_rank_forks_does_not_keep_its_socket(tmp_path: Path) -> None:
    goes_well(tmp_path, FORKS)


def test_what_a_function_has_goes_with_it_while_its_stack_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local:
        pass

    begun, goes, there = threading.Event(), threading.Event(), []

    def function() -> None:
        local = Local()
        there.append(weakref.ref(local))
        begun.set()
        goes.wait(HANG_S)

    thread = threading.Thread(target=function)
    thread.start()
    assert begun.wait(HANG_S)
    plain = frames._shown

    def shown(text: str) -> str:
        goes.set()
        thread.join(HANG_S)
        assert there[0]() is None
        return plain(text)

    monkeypatch.setattr(frames, "_shown", shown)
    text = frames.of_all(but=0)
    assert "in function" in text and "[MainThread]" in text


def test_a_name_that_a_program_makes_itself_is_not_asked_for() -> None:
    asked, goes = [], threading.Event()

    class Named(threading.Thread):
        @property
        def name(self) -> str:
            asked.append(threading.get_ident())
            raise LookupError

        @name.setter
        def name(self, name: str) -> None:
            self._name = name

    Named(target=goes.wait, args=(HANG_S,), daemon=True).start()
    asked.clear()
    try:
        text = frames.of_all(but=0)
    finally:
        goes.set()
    assert asked == [] and "[Thread-" in text
