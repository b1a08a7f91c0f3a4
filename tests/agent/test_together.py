"""What is said once for many: calls of one agent's ranks, a frame for many receivers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from support.frames import as_sent
from support.patience import HANG_S
from trainjob.agent.attempts import member
from trainjob.agent.attempts.member import Member
from trainjob.agent.wire.arrive import Arrive, Callers
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.from_member import FROM_MEMBER, Ended, FromMember
from trainjob_api import contract, wire
from trainjob_api.rank_messages import Collective, Failed, Log, LogRow, Offer, ToRank
from trainjob_api.typed import BadMessage


class Rank:
    """One that runs, until it has ended."""

    def __init__(self, number: int) -> None:
        self.rank = number

    def report(self) -> dict[str, Any]:
        return {"rank": self.rank, "kind": contract.END_EXIT, "exit_code": 1, "signal": None, "state": "ended"}


class Here:
    """A member with ranks 8..11, and what it says to rank 0's agent."""

    def __init__(self) -> None:
        self.ranks = [Rank(number) for number in range(8, 12)]
        self.said: list[FromMember] = []
        self.heard = asyncio.Event()
        site = SimpleNamespace(saving=SimpleNamespace(tell_shared=lambda: None), on_fault=lambda *_: None)
        duties: Any = SimpleNamespace(ranks=self.ranks, joined=None)
        self.member = Member(site, duties, self._say)  # type: ignore[arg-type]

    def _say(self, word: FromMember) -> None:
        self.said.append(word)
        self.heard.set()

    def call(self, rank: int, n: int = 1, kind: str = "report", **fields: Any) -> None:
        self.member.called(rank, Collective(n, kind, **fields))

    @property
    def arrivals(self) -> list[Arrive]:
        return [word for word in self.said if isinstance(word, Arrive)]


def test_all_ranks_of_an_agent_arrive_in_one_message() -> None:
    async def scene() -> None:
        here = Here()
        for rank in (9, 8, 11):
            here.call(rank)
            assert here.said == []
        here.call(10)
        (arrive,) = here.arrivals
        assert arrive.callers == (Callers((8, 9, 10, 11)),) and (arrive.n, arrive.kind) == (1, "report")
        here.member.close()

    asyncio.run(scene())


def test_what_differs_is_told_apart_and_metadata_of_the_lowest_rank_alone() -> None:
    async def scene() -> None:
        here = Here()
        offer = Offer("/p", contract.UPLOAD_SYNC)
        here.call(8, timeout_s=5.0)
        here.call(9, checkpoint=offer._replace(metadata={"by": 9}))
        here.call(10, stop=True, step=3)
        here.call(11, checkpoint=offer._replace(metadata={"by": 11}))
        (arrive,) = here.arrivals
        assert set(arrive.callers) == {
            Callers((8,), 5.0),
            Callers((9, 11), None, contract.UPLOAD_SYNC),
            Callers((10,), stop=True, step=3),
        }
        assert arrive.metadata == {9: {"by": 9}}
        here.member.close()

    asyncio.run(scene())


def test_where_one_rank_keeps_the_others_waiting_it_is_told_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "TELL_S", 0.01)

    async def scene() -> None:
        here = Here()
        here.call(8)
        here.call(9)
        await asyncio.wait_for(here.heard.wait(), HANG_S)
        assert here.arrivals[0].callers == (Callers((8, 9)),) and here.arrivals[0].waited_s >= 0.01
        here.call(10)
        here.call(11)
        assert here.arrivals[1].callers == (Callers((10, 11)),)
        here.member.close()

    asyncio.run(scene())


def test_who_came_is_told_before_the_end_of_one_that_will_not_come() -> None:
    async def scene() -> None:
        here = Here()
        here.call(8)
        here.call(10)
        here.member.ended(here.ranks[1])  # type: ignore[arg-type]
        assert [type(word) for word in here.said] == [Arrive, Ended]
        here.call(11)
        assert here.arrivals[-1].callers == (Callers((11,)),), "nobody waits for one that has ended"
        here.member.close()

    asyncio.run(scene())


def test_a_call_of_a_rank_that_waits_in_another_one_is_refused_at_once_and_the_first_stays() -> None:
    """A second process speaks as this rank: the barrier would drop its call, and nobody would ever answer it."""

    async def scene() -> None:
        here, answers = Here(), list[tuple[int, ToRank]]()
        here.member.server = SimpleNamespace(send=lambda rank, word: answers.append((rank, word)))  # type: ignore[assignment]
        here.call(8, n=3)
        here.call(8, n=4)
        ((rank, refused),) = answers
        assert isinstance(refused, Failed) and (rank, refused.n, refused.reason) == (8, 4, contract.FAIL_MISMATCH)
        assert "while another one of its own is not answered yet" in refused.message
        for other in range(9, 12):
            here.call(other, n=3)
        assert [(arrive.n, arrive.callers) for arrive in here.arrivals] == [(3, (Callers((8, 9, 10, 11)),))]
        here.member.close()

    asyncio.run(scene())


def test_rows_of_log_are_told_for_rank_0_alone() -> None:
    async def scene() -> None:
        here, rows = Here(), Log((LogRow({"loss": 1.0}, 1, 0.0),))
        for rank in (8, 0):
            here.member.called(rank, rows)
        assert here.said == [rows]
        here.member.close()

    asyncio.run(scene())


def test_after_a_lost_connection_all_who_wait_are_told_once_more() -> None:
    async def scene() -> None:
        here = Here()
        for rank in range(8, 12):
            here.call(rank)
        here.said.clear()
        here.member.say_all_again()
        assert here.arrivals[0].callers == (Callers((8, 9, 10, 11)),)
        here.member.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": "1"},
        {"kind": "other"},
        {"callers": [[[], None, None, False]]},
        {"callers": [[["0"], None, None, False]]},
        {"callers": [[[0], None, "SOMETIMES", False]]},
        {"callers": [[[0], None]]},
        {"callers": None},
        {"row": [1]},
        {"metadata": {"x": {}}},
        {"waited_s": None},
    ],
)
def test_an_arrival_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    arrive = Arrive(1, "report", (Callers((0,)),), 0.5, {"metrics": {}}, {0: {"a": 1}}, 4)
    good, blob = as_sent(FROM_MEMBER, arrive)
    assert FROM_MEMBER.parse(good, blob) == arrive
    with pytest.raises(BadMessage, match=f"'arrive' makes no sense: {next(iter(wrong))}|no collective"):
        FROM_MEMBER.parse({**good, **wrong})


PLAIN = Arrive(7, "report", (Callers((8, 9, 10)),), 0.25)


@pytest.mark.parametrize(
    "arrive",
    [
        PLAIN,
        PLAIN._replace(n=1, kind="broadcast", callers=(Callers((0,), 0.0, "SYNC", True, 0),)),
        PLAIN._replace(callers=(Callers((8, 9), 30.5, "NO_UPLOAD", False, -(2**40)),)),
    ],
    ids=["report", "stops", "saves"],
)
def test_what_every_member_says_has_a_short_form(arrive: Arrive) -> None:
    message, blob = as_sent(FROM_MEMBER, arrive)
    assert (message, len(blob)) == ({}, 38)
    assert FROM_MEMBER.parse(message, blob) == arrive


@pytest.mark.parametrize(
    "arrive",
    [
        PLAIN._replace(row={"metrics": {"loss": 0.5}}),
        PLAIN._replace(metadata={8: {"a": 1}}),
        PLAIN._replace(world_size=4),
        PLAIN._replace(blob=b"blob"),
        PLAIN._replace(wanted={9: {"loss": 0.5}}),
        PLAIN._replace(callers=(Callers((8,)), Callers((9,), 30.0))),
        PLAIN._replace(callers=(Callers((8, 10)),)),
        PLAIN._replace(callers=(Callers((8,), None, None, False, 2**63),)),
        PLAIN._replace(n=2**32),
        PLAIN._replace(callers=(Callers(tuple(range(70_000))),)),
    ],
)
def test_what_has_more_to_say_is_told_whole(arrive: Arrive) -> None:
    message, blob = as_sent(FROM_MEMBER, arrive)
    assert message["op"] == "arrive"
    assert FROM_MEMBER.parse(message, blob) == arrive


def receivers(count: int, scene: Callable[[list[FrameConnection], list[socket.socket]], Any]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        connections, ends = [], []
        for _ in range(count):
            mine, theirs = socket.socketpair()
            theirs.setblocking(False)
            _, connection = await loop.create_connection(
                lambda: FrameConnection(lambda c, m, b: None, lambda c: None), sock=mine
            )
            connections.append(connection)
            ends.append(theirs)
        try:
            await scene(connections, ends)
        finally:
            for end in ends:
                end.close()

    asyncio.run(run())


def test_a_frame_for_many_lies_in_memory_once_and_arrives_whole_and_in_order() -> None:
    frame = wire.encode({"op": "large"}, bytes(range(256)) * (1 << 14))

    async def scene(connections: list[FrameConnection], ends: list[socket.socket]) -> None:
        for connection in connections:
            connection.send_frame(frame)
            connection.send({"op": "after"})
            connection.close()
            waiting = sum(
                connection._transport.get_write_buffer_size() for connection in connections if connection._transport
            )
            assert waiting < len(connections) << 18, "nobody has taken it yet, and it was not copied for each"
        for end in ends:
            decoder, got = wire.Decoder(), []
            while data := await asyncio.get_running_loop().sock_recv(end, 1 << 20):
                got += list(decoder.feed(data))
            assert [message["op"] for message, _ in got] == ["large", "after"] and len(got[0][1]) == 1 << 22

    receivers(8, scene)


def test_who_waits_for_room_waits_until_all_of_a_large_frame_is_taken() -> None:
    async def scene(connections: list[FrameConnection], ends: list[socket.socket]) -> None:
        connections[0].send({"op": "large"}, b"x" * (1 << 22))
        drained = asyncio.ensure_future(connections[0].drained())
        taken = 0
        while not drained.done():
            taken += len(await asyncio.get_running_loop().sock_recv(ends[0], 1 << 16))
        assert taken > 1 << 21
        connections[0].abort()

    receivers(1, scene)
