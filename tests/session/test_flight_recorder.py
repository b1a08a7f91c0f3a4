"""A rank's collectives and stacks, told by itself while it is inside a call that does not end. With torch's own record,
but for what a record of another backend looks like.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.patience import HANG_S
from support.torch_release import needs_record_of_gloo, without_gloo
from trainjob.agent.processes.asking import standing_of
from trainjob.session import flight_recorder
from trainjob_api import contract
from trainjob_api.recorded_calls import CALLS_EACH, GROUPS_LIMIT, Call
from trainjob_api.standing import Standing

RANK = """
import os, signal, socket, sys, threading, time
import torch, torch.distributed as dist
from trainjob.session import flight_recorder, gloo_threads, stacks
gloo_threads.let_finish()  # as each rank does
rank = int(os.environ["RANK"])
if "alone" not in sys.argv:
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
flight_recorder.begin()
stacks.make_readable()
stacks.make_readable()
"""
WAIT_S = 1.0
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(script: str, rank: int, *words: str) -> subprocess.Popen[str]:
            program = tmp_path / "rank.py"
            program.write_text(RANK + textwrap.dedent(script))
            process = subprocess.Popen(
                [sys.executable, str(program), str(tmp_path / "store"), *words],
                env={**os.environ, "RANK": str(rank), contract.ENV_STACK_FOLDER: str(tmp_path)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(lambda: (process.kill(), process.communicate()))
            return process

        yield begin


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    while not (told := without_gloo([process.stdout.readline()])):
        pass
    return told[0].strip()


def asked(folder: Path, *ranks: subprocess.Popen[str]) -> dict[int, Standing]:
    """Of those that answer."""

    async def ask() -> list[Standing | None]:
        return await asyncio.gather(*(standing_of(n, each.pid, str(folder), WAIT_S) for n, each in enumerate(ranks)))

    return {rank: told for rank, told in enumerate(asyncio.run(ask())) if told is not None}


def called(folder: Path, *ranks: subprocess.Popen[str]) -> dict[int, tuple[Call, ...] | None]:
    return {rank: told.calls for rank, told in asked(folder, *ranks).items()}


WAITS = """
x = torch.ones(3)
dist.all_reduce(x)
pair = dist.new_group([0, 1])
dist.broadcast(x, 0, group=pair)
print("parts", flush=True)
if rank == 0:
    dist.all_reduce(torch.ones(2, 4))
else:
    sys.stdin.readline()
    dist.all_reduce(torch.ones(2, 4))
print(threading.active_count(), flush=True)
"""


def test_a_rank_inside_a_collective_tells_what_it_has_called(tmp_path: Path, start: Start) -> None:
    needs_record_of_gloo()
    ranks = [start(WAITS, 0), start(WAITS, 1)]
    assert [said(rank) for rank in ranks] == ["parts", "parts"]
    waits = Call("default_pg", 2, "all_reduce", "[2, 4] float", False)
    first = Call("default_pg", 1, "all_reduce", "[3] float", True)
    shared = Call("1", 1, "broadcast", "[3] float", True)
    until = time.monotonic() + HANG_S
    while (found := called(tmp_path, *ranks)) != {0: (shared, first, waits), 1: (first, shared)}:
        assert all(rank.poll() is None for rank in ranks) and time.monotonic() < until, found
    assert ranks[1].stdin is not None
    ranks[1].stdin.write("go\n")
    ranks[1].stdin.flush()
    # It is none of the program's threads, and keeps nobody from ending.
    assert [said(rank) for rank in ranks] == ["1", "1"]
    assert [rank.wait(HANG_S) for rank in ranks] == [0, 0]


SIGNALS = """
def heard(number, frame):
    os.write(1, f"heard {threading.current_thread() is threading.main_thread()}\\n".encode())
signal.signal(signal.SIGTERM, heard)
print("ready", flush=True)
for second in range(2):
    time.sleep(600) if second else signal.pause()
"""


def test_signals_reach_the_main_thread(tmp_path: Path, start: Start) -> None:
    ranks = [start(SIGNALS, 0), start(SIGNALS, 1)]
    for rank in ranks:
        assert said(rank) == "ready"
        # Again until it is heard: one that comes just before pause() waits in it for the next.
        while not select.select([rank.stdout], [], [], 0.1)[0]:
            rank.send_signal(signal.SIGTERM)
        assert said(rank) == "heard True"


CLOSES = """
sys.stdin.readline()
os.closerange(3, 100)
mine = [socket.socket(socket.AF_UNIX) for _ in range(60)]
for number, listener in enumerate(mine):
    listener.bind(f"{sys.argv[1]}.{rank}.{number}")
    listener.listen()
print("closed", flush=True)
sys.stdin.readline()
for listener in mine:
    print(len(listener.accept()[0].recv(1)), flush=True)
os._exit(0)
"""


def test_a_program_that_closed_the_socket_keeps_its_own(tmp_path: Path, start: Start) -> None:
    rank = start(CLOSES, 0, "alone")  # gloo ends a process whose files are closed
    assert rank.stdin is not None
    rank.stdin.write("close\n")
    rank.stdin.flush()
    assert said(rank) == "closed"
    asked(tmp_path, rank)  # one who waits since before
    assert asked(tmp_path, rank) == {}
    callers = []
    for number in range(60):
        caller = socket.socket(socket.AF_UNIX)
        caller.connect(f"{tmp_path}/store.0.{number}")
        caller.sendall(b"x")
        callers.append(caller)
    rank.stdin.write("accept\n")
    rank.stdin.flush()
    assert [said(rank) for _ in callers] == ["1"] * 60


def test_a_stopped_rank_is_left_out(tmp_path: Path, start: Start) -> None:
    ranks = [start("print('there', flush=True)\ntime.sleep(600)", rank) for rank in (0, 1)]
    assert [said(rank) for rank in ranks] == ["there", "there"]
    ranks[0].send_signal(signal.SIGSTOP)
    os.waitpid(ranks[0].pid, os.WUNTRACED)  # until all its threads stand
    while not (found := asked(tmp_path, *ranks)):  # who is late is left out too
        assert all(rank.poll() is None for rank in ranks)
    assert set(found) == {1}
    ranks[0].send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"op":"standing"}',
        b'{"op":"standing","pid":1,"stacks":"","calls":[[1]]}',
        b'{"op":"standing","pid":2,"stacks":"of another process"}',
        b"[" * 10**5,
    ],
)
def test_an_answer_that_makes_no_sense_is_none(tmp_path: Path, text: bytes) -> None:
    async def ask() -> Standing | None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(text)
            writer.close()

        server = await asyncio.start_unix_server(answer, tmp_path / contract.STANDING_SOCKET.format(rank=0))
        async with server:
            return await standing_of(0, 1, str(tmp_path), HANG_S)

    assert asyncio.run(ask()) is None


AGAIN = """
x = torch.ones(3)
for again in range(3):
    dist.all_reduce(x)
dist.destroy_process_group()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "2", rank=rank, world_size=2)
dist.broadcast(x, 0)
print("again", flush=True)
time.sleep(600)
"""


def test_a_group_that_is_made_anew_has_calls_of_its_own_alone(tmp_path: Path, start: Start) -> None:
    needs_record_of_gloo()
    ranks = [start(AGAIN, 0), start(AGAIN, 1)]
    assert [said(rank) for rank in ranks] == ["again", "again"]
    while set(found := called(tmp_path, *ranks)) != {0, 1}:
        assert all(rank.poll() is None for rank in ranks)
    assert {calls[0][:4] for calls in found.values() if calls is not None and len(calls) == 1} == {
        ("default_pg", 1, "broadcast", "[3] float")
    }


CHILD = """
import subprocess
os.environ["TRAINJOB_RANK_PID"] = str(os.getpid())
code = "from trainjob.session import answering, stacks; stacks.make_readable(); print(answering._served)"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip(), flush=True)
time.sleep(600)
"""


def test_a_process_that_a_rank_has_started_leaves_its_socket_alone(tmp_path: Path, start: Start) -> None:
    rank = start(CHILD, 0, "alone")
    assert said(rank) == "None"
    while not (found := called(tmp_path, rank)):
        assert rank.poll() is None
    assert found == {0: (Call("default_pg", 0, "", "", True),)}


NO_GROUP = RANK.replace("flight_recorder.begin()\n", "")


def test_a_rank_without_a_group_tells_its_stacks_alone(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RANK", NO_GROUP)
    rank = start("print('there', flush=True)\ntime.sleep(600)", 0, "alone")
    assert said(rank) == "there"
    while not (found := asked(tmp_path, rank)):
        assert rank.poll() is None
    assert found[0].calls is None and "[MainThread]" in found[0].stacks


def entry(number: int, group: tuple[str, str] = ("0", "default_pg"), **more: object) -> dict[str, object]:
    plain = {
        "record_id": 0,
        "time_created_ns": number,
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[4]],
        "is_p2p": False,
        "process_group": list(group),
        "profiling_name": "nccl:all_reduce",
        "retired": False,
        "state": "completed",
    }
    return {**plain, **more}


def test_of_each_group_the_last_calls_and_of_many_groups_those_used_last() -> None:
    entries = [entry(n + 1, (str(n % 20), "undefined")) for n in range(20 * 30)]
    found = flight_recorder.last_calls({"entries": entries})
    assert len(found) == GROUPS_LIMIT * CALLS_EACH
    assert found[-1].number == 600 and {call.group for call in found} == {str(n) for n in range(20 - GROUPS_LIMIT, 20)}


def test_nccl_names_its_operations_otherwise_and_sends_are_none() -> None:
    entries = [
        entry(1, profiling_name="nccl:_all_gather_base", state="started"),
        entry(2, profiling_name="nccl:all_to_all", state="scheduled"),
        entry(3, is_p2p=True, profiling_name="nccl:send 0->1"),
        entry(4, profiling_name="nccl:scatter"),
        entry(5, profiling_name="nccl:_reduce_scatter_base", input_sizes=[[4], [2, 2]], input_dtypes=["Half", "Half"]),
    ]
    assert flight_recorder.last_calls({"entries": entries}) == [
        Call("default_pg", 1, "all_gather_base", "[4] float", False),
        Call("default_pg", 2, "all_to_all", "", False),
        Call("default_pg", 4, "scatter", "", True),
        Call("default_pg", 5, "reduce_scatter_base", "[4] half, [2, 2] half", True),
    ]


@pytest.mark.parametrize(("begun", "on"), [({2, 3}, 2), ({0}, 0), (set(), 0), (None, 0)])
def test_the_record_is_asked_for_on_a_device_that_the_rank_uses(
    monkeypatch: pytest.MonkeyPatch, begun: set[int] | None, on: int
) -> None:
    """The driver makes a context on the current device for whoever asks it, which is the first in a new thread; and
    ends the captures of others, unless that thread has said that it is relaxed.
    """
    device = [0]
    modes = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
            modes.append(mode._obj.value)

    def dump(**_: bool) -> str:
        assert device == [on] and modes == ([] if begun is None else [2])
        return '{"entries": []}'

    monkeypatch.setattr(flight_recorder.ctypes, "CDLL", Driver)

    cuda = SimpleNamespace(
        is_initialized=lambda: begun is not None, device_count=lambda: 4, set_device=lambda n: device.__setitem__(0, n)
    )
    has = SimpleNamespace(_cuda_hasPrimaryContext=lambda n: n in (begun or ()))
    names = ("torch.cuda", "torch._C", "torch._C._distributed_c10d")
    for name, module in zip(names, (cuda, has, SimpleNamespace(_dump_nccl_trace_json=dump)), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(flight_recorder, "_begun", True)
    assert flight_recorder.calls() == [Call("default_pg", 0, "", "", True)]


def test_a_record_of_nothing() -> None:
    none = [Call("default_pg", 0, "", "", True)]
    assert flight_recorder.last_calls({"version": "2.10"}) == none
    assert flight_recorder.last_calls({"entries": [entry(1)]}, since_ns=2) == none
    wrapped = entry(7, ("3", "undefined"), record_id=100)
    assert [call.group for call in flight_recorder.last_calls({"entries": [wrapped]})] == ["3"]


def test_groups_of_one_description_are_told_apart() -> None:
    entries = [entry(1), *(entry(1, (name, "mesh_tp")) for name in ("5", "6")), entry(1, ("7", ""))]
    names = [call.group for call in flight_recorder.last_calls({"entries": entries})]
    assert names == ["default_pg", "5 (mesh_tp)", "6 (mesh_tp)", "7"]
