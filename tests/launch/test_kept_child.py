"""The end of an agent that was started of a kept parent is known, whoever tells it or cannot."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pytest

from support.patience import HANG_S
from support.scenario import wait_until
from trainjob.launch.local.kept import child as of_child
from trainjob.launch.local.kept.child import KeptChild
from trainjob_api.warm_messages import FROM_KEPT, Ended, Took, packet

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone has it")


class Running(NamedTuple):
    """An agent, and the process between."""

    agent: int
    between: int
    line: socket.socket
    pipe: int
    """To which the agent writes."""

    def told(self) -> bytes:
        return os.read(self.pipe, 100)

    def child(self) -> KeptChild:
        return KeptChild(self.line, Took(self.agent, self.between))


@pytest.fixture
def running() -> Iterator[Running]:
    """The agent ends with 7 at SIGTERM."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        ours.close()
        agent = os.fork()
        if agent == 0:
            theirs.close()
            signal.signal(signal.SIGTERM, lambda *_: os.write(writing, b"ended by itself") and os._exit(7))
            os.write(writing, str(os.getpid()).encode())
            while True:
                signal.pause()
        _, status = os.waitpid(agent, 0)
        theirs.send(packet(FROM_KEPT, Ended(status)))
        os._exit(0)
    theirs.close()
    os.close(writing)
    agent = int(os.read(reading, 100))
    yield Running(agent, between, ours, reading)
    os.close(reading)
    for pid in (agent, between):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(between, 0)


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_the_process_between_tells_it(running: Running) -> None:
    child = running.child()
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 7


def test_it_is_seen_where_the_process_between_stands_still(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_child, "TELL_S", 0.0)
    child = running.child()
    os.kill(running.between, signal.SIGSTOP)
    wait_until(lambda: stopped(running.between))
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 7
    assert os.waitpid(running.between, 0) == (running.between, signal.SIGKILL), "it does not stay"


def test_it_goes_on_without_the_process_between(running: Running) -> None:
    child = running.child()
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(child.wait)
        os.kill(running.between, signal.SIGKILL)
        os.waitpid(running.between, 0)
        child.send_signal(signal.SIGTERM)
        assert waits.result(timeout=HANG_S) == of_child.UNKNOWN
    assert running.told() == b"ended by itself", "nobody has killed it"


def test_it_is_heard_in_a_process_that_has_many_files_open(running: Running) -> None:
    own = os.dup(0)
    files = [os.dup(own) for _ in range(1100)]
    try:
        child = running.child()
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 7
    finally:
        for file in (own, *files):
            os.close(file)
