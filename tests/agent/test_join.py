"""How members come together: every order ends with one answer for all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainjob.agent.attempts.join import ANSWERED, GATHERING, Answer, Join, Refuse, Request, Settle, holders, staged
from trainjob.agent.wire.from_leader import Joined, Resume
from trainjob.agent.wire.packed import Held
from trainjob_api import contract

NOTE = {"id": "1-1-3", "files": [["a", 1, 0], ["b", 1, 1]]}


def answer(run: int = 1) -> Joined:
    return Joined(run, False, (), "10.0.0.0", 29500, None, Resume(None, {}, ()))


def request(index: int, *held: str) -> Request:
    return Request(index, f"10.0.0.{index}:7000", (Held.of(NOTE, held),) if held else ())


def test_the_last_member_starts_the_settling() -> None:
    join = Join(2)
    assert join.asked(request(1)) == []
    assert join.missing() == (0,)
    assert join.asked(request(0)) == [Settle((request(0), request(1)))]
    assert join.settled(answer()) == [Answer((0, 1), answer())]


def test_a_member_that_left_before_all_were_here_is_waited_for_again() -> None:
    join = Join(2)
    join.asked(request(1))
    join.left(1)
    assert join.asked(request(0)) == []
    assert join.missing() == (1,)
    assert join.asked(request(1)) != []


def test_a_member_that_asks_again_gets_the_same_answer_alone() -> None:
    join = Join(2)
    join.asked(request(0))
    join.asked(request(1))
    join.settled(answer(4))
    join.left(1)
    assert join.asked(request(1)) == [Answer((1,), answer(4))]


def test_a_member_that_is_lost_while_it_is_settled_can_come_back_for_the_answer() -> None:
    join = Join(1)
    join.asked(request(0))
    join.left(0)
    assert join.settled(answer()) == [Answer((0,), answer())]


def test_a_refusal_reaches_all_and_latecomers() -> None:
    join = Join(2)
    join.asked(request(0))
    join.asked(request(1))
    assert join.failed("storage", "read-only") == [Refuse((0, 1), "storage", "read-only")]
    assert join.asked(request(1)) == [Refuse((1,), "storage", "read-only")]
    assert join.settled(answer()) == []


def test_a_member_that_began_by_an_answer_which_is_forgotten_ends_the_attempt() -> None:
    """Rank 0's container was started again before it had forked: the other one never asks again."""
    join = Join(2)
    join.asked(request(0))
    (refused,) = join.began()
    assert isinstance(refused, Refuse) and (refused.indices, refused.kind) == ((0,), contract.END_LOST)
    assert join.began() == []
    assert join.asked(request(0)) == [refused]


def test_a_member_that_comes_back_to_whom_answered_it_changes_nothing() -> None:
    join = Join(1)
    join.asked(request(0))
    assert join.began() == [], "it is being settled"
    join.settled(answer())
    assert join.began() == []
    assert join.asked(request(0)) == [Answer((0,), answer())]


def test_an_index_outside_the_attempt_is_refused() -> None:
    join = Join(2)
    for index in (-1, 2):
        try:
            join.asked(request(index))
        except ValueError:
            continue
        raise AssertionError(index)


def test_what_members_hold_is_put_together() -> None:
    members = (request(0, "a"), request(1, "b"), request(2))
    ((held, who),) = staged(members)
    assert (held.id, held.paths(NOTE), who) == ("1-1-3", ["a", "b"], (0, 1))
    assert holders(members, held.sha) == {"10.0.0.0:7000": 1, "10.0.0.1:7000": 2}
    assert holders(members, "") == {}


def test_two_notes_of_one_name_are_two_checkpoints() -> None:
    other = {**NOTE, "files": [["b", 1, 0], ["a", 1, 1]]}
    members = (request(0, "a"), Request(1, "10.0.0.1:7000", (Held.of(other, ["a"]),)))
    assert [(one.held.bits, one.members) for one in staged(members)] == [(1, (0,)), (2, (1,))]


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), st.booleans())
def test_all_orders_settle_exactly_once_and_answer_everyone(
    workers: int, moves: list[tuple[bool, int]], works: bool
) -> None:
    join = Join(workers)
    settles, answered = 0, set()
    for asks, index in [*moves, *((True, i) for i in range(workers)), *((True, i) for i in range(workers))]:
        if index >= workers:
            continue
        outputs = join.asked(request(index)) if asks else join.left(index)
        for output in outputs:
            if isinstance(output, Settle):
                settles += 1
                assert [m.member for m in output.members] == list(range(workers))
                (told,) = join.settled(answer()) if works else join.failed("storage", "no")
                assert not isinstance(told, Settle)
                answered |= set(told.indices)
            else:
                answered |= set(output.indices)
    assert settles == 1
    assert answered == set(range(workers))
    assert join.phase != GATHERING and (join.phase == ANSWERED) == works
