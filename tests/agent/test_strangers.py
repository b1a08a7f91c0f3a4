"""A stranger at the port of rank 0's agent while its job trains: it gets no memory, no file descriptors and no answer
that is worth anything, and the job neither waits nor ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.patience import HANG_S
from trainjob.agent.wire import handshake, peers
from trainjob_api import contract, wire

pytestmark = pytest.mark.slow

SCRIPT = """
import os, time, trainjob
c, i = trainjob.get_context(), 0
while not trainjob.broadcast_from_rank_zero(os.path.exists("end")):
    i += 1
    trainjob.report({"i": i}, step=i)
    time.sleep(0.01)
"""
DESCRIPTORS = 512
"""Soft limit of the agents; many containers have 1024."""
MANY = 1500
GROWTH_KIB = 24 * 1024


class Stranger:
    """A raw socket at an agent's port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), HANG_S)

    def say(self, message: wire.Message) -> None:
        self.write(wire.encode(message))

    def write(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            pass

    def hear(self) -> dict[str, Any]:
        head = self._exactly(8)
        found: dict[str, Any] = json.loads(self._exactly(int.from_bytes(head[:4], "big")))
        return found

    def is_closed(self) -> bool:
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise ConnectionError("closed")
            found += more
        return found


class Site:
    """Two agents that train, and what the leading one uses."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.pid = rig.agents[0].process.pid
        self.address: str = rig.report(0)["address"]
        self.descriptors, self.memory = self.open_descriptors(), self.resident_kib()

    def stranger(self) -> Stranger:
        return Stranger(self.address)

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_kib(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.split("VmHWM:")[1].split()[0])

    def goes_on(self) -> None:
        """Both ranks report again."""
        attempt, seen = self.rig.report(0)["attempt"], self.step()
        self.rig.wait(lambda: self.step() > seen and self.rig.report(0)["attempt"] == attempt, "steps go on")

    def step(self) -> int:
        return int((self.rig.report(0).get("progress") or {}).get("step") or 0)

    def is_as_before(self) -> None:
        """Nothing is kept of any stranger, and the job has not noticed."""
        self.rig.wait(lambda: self.open_descriptors() <= self.descriptors + 2, "no descriptor is kept")
        assert self.resident_kib() - self.memory < GROWTH_KIB, "memory grew"
        self.goes_on()
        (self.rig.work / "end").touch()
        self.rig.wait(self.rig.completed, "completed")
        assert not [r for r in self.rig.coordinator.log if r.get("warning")], "whoever reaches the port can make it say"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    limited = f'ulimit -n {DESCRIPTORS}; exec "$0" -m trainjob.agent "$@"'
    # Forks for the next start have descriptors of the agent: there are none, so that what strangers leave is counted.
    spec = {"prefork": contract.PREFORK_NEVER}
    with Rig(tmp_path, script=SCRIPT, python="/bin/bash", entry=("-c", limited, sys.executable), spec=spec) as rig:
        rig.run(1)
        rig.wait(lambda: (rig.report(0).get("progress") or {}).get("step"), "trains")
        yield Site(rig)


def test_more_connections_than_it_has_descriptors_take_nothing_from_the_job(site: Site) -> None:
    """Ranks of the next attempt start beside them, and both members join."""
    with ExitStack() as open_ones:
        for _ in range(MANY):
            open_ones.enter_context(closing(site.stranger()))
        site.goes_on()
        assert site.open_descriptors() < DESCRIPTORS * 3 // 4
        os.kill(site.rig.pid_of(1), 9)
        site.rig.wait(lambda: site.rig.ended(1, attempt=1), "killed")
        for _ in range(MANY):
            open_ones.enter_context(closing(site.stranger()))
        site.rig.run(2)
        site.rig.wait(lambda: site.rig.running(0, 1, attempt=2), "started beside strangers")
        site.goes_on()
    site.is_as_before()


def proven(stranger: Stranger, attempt: int, secret: str, index: int = 1) -> list[wire.Message]:
    """What a caller that knows the secret says in its handshake."""
    hello = handshake.hello(handshake.FILES, attempt, index)
    stranger.say(hello.to_message())
    proof = handshake.answer(secret, hello, stranger.hear())
    stranger.say(proof)
    assert stranger.hear() == {"op": handshake.HELLO}
    return [hello.to_message(), proof]


def test_what_strangers_say_gets_them_nothing(site: Site) -> None:
    with ExitStack() as open_ones:

        def stranger() -> Stranger:
            return open_ones.enter_context(closing(site.stranger()))

        recorded = proven(stranger(), 1, "secret of attempt 1")
        replays = stranger()
        replays.say(recorded[0])
        assert replays.hear()["op"] == handshake.CHALLENGE
        replays.say(recorded[1])
        assert replays.hear()["op"] == handshake.REFUSED and replays.is_closed()
        reflects, mine = stranger(), handshake.hello(handshake.MEMBER, 1, 1)
        reflects.say(mine.to_message())
        theirs = reflects.hear()
        reflects.say({"op": handshake.PROOF, "proof": theirs["proof"]})
        assert reflects.hear()["op"] == handshake.REFUSED and reflects.is_closed()
        # A nonce of ours that was answered on another connection.
        borrows, first = stranger(), stranger()
        first.say(mine.to_message())
        borrows.say(mine.to_message())
        first.hear()
        other = handshake.challenge("secret of attempt 1", mine, "0" * 64)
        borrows.say(handshake.answer("secret of attempt 1", mine, other))
        assert borrows.hear()["op"] == handshake.CHALLENGE
        assert borrows.hear()["op"] == handshake.REFUSED and borrows.is_closed()
        for attempt, secret in ((1, "secret of attempt 0"), (1, ""), (0, "secret of attempt 1")):
            guesses, hello = stranger(), handshake.hello(handshake.MEMBER, attempt, 1)
            guesses.say(hello.to_message())
            answer = guesses.hear()
            if answer["op"] == handshake.CHALLENGE:
                with pytest.raises(ValueError):
                    handshake.answer(secret, hello, answer)
                guesses.say(handshake.answer(secret, hello, handshake.challenge(secret, hello, answer["nonce"])))
                answer = guesses.hear()
            assert answer["op"] == handshake.REFUSED and guesses.is_closed()
        chatters = stranger()
        chatters.say(mine.to_message())
        chatters.say({"op": "arrive"})
        assert chatters.hear()["op"] == handshake.CHALLENGE
        chatters.hear()
        assert chatters.is_closed()
    site.is_as_before()


def test_no_stranger_makes_it_keep_bytes(site: Site) -> None:
    """Heads that promise much, hellos that never end or nest deep, of an attempt to come, by the hundred."""
    later = wire.encode(handshake.hello(handshake.MEMBER, 2**40, 1).to_message())
    heads = [(size).to_bytes(4, "big") + bytes(4) for size in (4096, 1 << 20, 2**32 - 1)]
    heads += [bytes(4) + (size).to_bytes(4, "big") for size in (4096, 2**32 - 1)]
    heads += [b"POST /v1/sync HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", bytes(64), b"[" * 5000]
    with ExitStack() as open_ones:
        for begin in (b"", later):
            for head in heads:
                for _ in range(8):
                    stranger = open_ones.enter_context(closing(site.stranger()))
                    stranger.write(begin + head + b"x" * (1 << 20))
                    assert stranger.is_closed()
        # Those that stay just below what is allowed, and wait.
        waiting = wire.encode({**handshake.hello(handshake.MEMBER, 2**40, 1).to_message(), "more": "x" * 1500})
        for _ in range(400):
            stranger = open_ones.enter_context(closing(site.stranger()))
            stranger.write(waiting + (2000).to_bytes(4, "big") + bytes(4) + b"x" * 1990)
        site.goes_on()
        assert site.resident_kib() - site.memory < GROWTH_KIB
    site.is_as_before()


def test_strangers_get_a_quarter_of_the_descriptors_at_most() -> None:
    assert peers.strangers_limit(-1) == peers.strangers_limit(1 << 20) == peers.STRANGERS_LIMIT
    assert (peers.strangers_limit(1024), peers.strangers_limit(2)) == (256, 1)
