"""A program whose connections are closed behind its back greets anew, again and again: its greetings may be read in any
order, and the highest number counts.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.kube_world import until
from support.patience import HANG_S
from trainjob.agent.wire.rank_calls import RankServer
from trainjob_api import contract, wire
from trainjob_api.rank_messages import (
    FROM_RANK,
    TO_RANK,
    Collective,
    Failed,
    FromRank,
    Hello,
    Log,
    Released,
    Repeated,
    Restore,
    Restored,
    ToRank,
)


def connected_by_a_child(path: str) -> socket.socket:
    """The kernel names that child as the other end."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        sock.connect(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return sock


class Session:
    """One connection of a rank."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def at(cls, server: RankServer) -> Session:
        return cls(*await asyncio.open_unix_connection(server.path))

    @classmethod
    async def of_another_process(cls, server: RankServer) -> Session:
        return cls(*await asyncio.open_unix_connection(sock=connected_by_a_child(server.path)))

    def say(self, *words: FromRank) -> None:
        self._writer.write(b"".join(map(FROM_RANK.encode, words)))

    async def hear(self) -> ToRank:
        decoder = wire.Decoder()
        while True:
            data = await asyncio.wait_for(self._reader.read(1), HANG_S)
            assert data, "it reads an end"
            for message, blob in decoder.feed(data):
                return TO_RANK.parse(message, blob)

    async def reads_an_end(self) -> bool:
        return await asyncio.wait_for(self._reader.read(), HANG_S) == b""

    def close(self) -> None:
        self._writer.close()


class Served:
    """A server and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.hellos: list[tuple[int, bool]] = []
        self.calls: list[FromRank] = []
        self.server = RankServer(1, str(folder), self._greeted, lambda rank, word: self.calls.append(word))

    def _greeted(self, hello: Hello, is_new: bool) -> None:
        self.hellos.append((hello.n, is_new))

    async def heard(self, count: int) -> None:
        await until(lambda: len(self.calls) >= count, f"{count} calls are heard")


def hello(n: int, first: int = 1, heard: int = 0) -> Hello:
    return Hello(0, 1, 2, 0, os.getpid(), n, first, heard)


@pytest.mark.parametrize("seed", range(8))
def test_the_highest_number_counts_in_whatever_order_greetings_are_read(tmp_path: Path, seed: int) -> None:
    """And what was said over the others is heard."""

    async def story() -> None:
        served = Served(tmp_path)
        await served.server.start()
        sessions = [await Session.at(served.server) for _ in range(4)]
        numbers = [1, 2, 3, 4]
        random.Random(seed).shuffle(numbers)
        for read, (session, n) in enumerate(zip(sessions, numbers, strict=True), 1):
            session.say(hello(n), Collective(n, contract.KIND_BARRIER))
            await served.heard(read)
        served.server.send(0, Released(4, False))
        newest = sessions[numbers.index(4)]
        found = await newest.hear()
        assert found == Released(4, False)
        for session in sessions:
            assert session is newest or await session.reads_an_end()
        assert sorted(word.n for word in served.calls if isinstance(word, Collective)) == [1, 2, 3, 4]
        assert [is_new for _, is_new in served.hellos].count(True) == 1
        served.server.close()

    asyncio.run(story())


def test_a_word_that_was_lost_is_repeated_over_the_newest_alone(tmp_path: Path) -> None:
    async def story() -> None:
        served = Served(tmp_path)
        await served.server.start()
        first, second, third = [await Session.at(served.server) for _ in range(3)]
        first.say(hello(1), Collective(1, contract.KIND_BARRIER))
        await served.heard(1)
        served.server.send(0, Released(1, False))
        third.say(hello(3))
        assert await third.hear() == Repeated(1)
        assert await third.hear() == Released(1, False)
        second.say(hello(2))
        assert await second.reads_an_end()
        # It is closed first, and its program has nothing else left: nothing is written to what it has lost.
        third.close()
        first.close()
        served.server.send(0, Released(2, False))
        fourth = await Session.at(served.server)
        fourth.say(hello(4, heard=1))
        assert await fourth.hear() == Repeated(2)
        served.server.close()

    asyncio.run(story())


def test_a_program_that_is_read_after_a_newer_one_gets_none_of_its_answers(tmp_path: Path) -> None:
    """A shell runs one after the other."""

    async def story() -> None:
        served = Served(tmp_path)
        await served.server.start()
        older, newer = await Session.of_another_process(served.server), await Session.at(served.server)
        newer.say(hello(2, first=2), Collective(1, contract.KIND_BARRIER))
        await served.heard(1)
        older.say(hello(1), Log(()))
        await served.heard(2)
        assert served.server.pid_of(0) == os.getpid()
        served.server.send(0, Released(1, False))
        assert await newer.hear() == Released(1, False)
        older.close()
        newer.say(Collective(2, contract.KIND_BARRIER))
        await served.heard(3)
        served.server.send(0, Released(2, False))
        assert await newer.hear() == Released(2, False)
        served.server.close()

    asyncio.run(story())


def test_an_answer_goes_to_the_program_that_asked_whichever_speaks_as_the_rank_by_then(tmp_path: Path) -> None:
    """A program that a rank has started calls beside it; and the rank connects anew."""

    async def story() -> None:
        served = Served(tmp_path)
        await served.server.start()
        parent, child = await Session.at(served.server), await Session.of_another_process(served.server)
        parent.say(hello(1), Collective(1, contract.KIND_BARRIER))
        await served.heard(1)
        child.say(hello(2, first=2), Restore())
        await served.heard(2)
        served.server.send(0, Failed(contract.FAIL_TIMEOUT, "late", n=1))
        assert await parent.hear() == Failed(contract.FAIL_TIMEOUT, "late", n=1)
        again = await Session.at(served.server)
        again.say(hello(3, heard=1), Collective(2, contract.KIND_BARRIER))
        await served.heard(3)
        assert served.server.pid_of(0) == os.getpid()
        assert [word.n for word in served.calls if isinstance(word, Collective)] == [1, 2]
        served.server.send(0, Restored(None))
        assert await child.hear() == Restored(None)
        child.close()
        served.server.send(0, Released(2, False))
        assert await again.hear() == Released(2, False)
        served.server.close()

    asyncio.run(story())


CLOSES_AGAIN_AND_AGAIN = """
import os, threading, time, trainjob
def close_all():
    while not done.wait(PAUSE):
        os.closerange(3, 256)
done = threading.Event()
closer = threading.Thread(target=close_all, daemon=True)
for i in range(150):
    if i == 1:  # all is imported, which could not be meanwhile
        closer.start()
    trainjob.log({"i": i})
    trainjob.report({"i": i})
    assert trainjob.broadcast_from_rank_zero(str(i) * 500) == str(i) * 500
done.set()
closer.join()
while len(os.listdir("/proc/self/task")) > 10:  # those that answer at what is closed find that nobody comes there
    time.sleep(0.01)
print("all done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.001, 0.003])
def test_calls_are_answered_while_a_thread_closes_all_descriptors_again_and_again(
    tmp_path: Path, pause_s: float
) -> None:
    with Rig(tmp_path, script=CLOSES_AGAIN_AND_AGAIN.replace("PAUSE", str(pause_s))) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert {rank["kind"] for rank in rig.ranks().values()} == {contract.END_OK}, rig.everything()
        for slot in (0, 1):
            rig.wait_text(slot, "all done")
        assert rig.report(0)["progress"]["position"] == 150
