"""The upload queue: one in flight, one waiting, a third waits as long as bytes move."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainjob.agent.committing.uploads import PLACES, STALL_S, Admitted, CommitNow, Drop, Uploads

NOTE: dict[str, Any] = {}


def full(now: float = 0) -> Uploads:
    uploads = Uploads(now)
    for id_ in ("1-1-1", "1-1-2"):
        assert Admitted() in uploads.admit(now)
        uploads.released(now, id_, NOTE, [0, 1])
    return uploads


def test_a_place_is_given_at_once() -> None:
    assert Uploads(0).admit(0) == [Admitted()]


def test_the_third_waits_for_the_first_commit() -> None:
    uploads = full()
    assert uploads.admit(1) == []
    uploads.shared(2, 0, "1-1-1")
    assert uploads.shared(2, 1, "1-1-1") == [CommitNow("1-1-1")]
    assert uploads.committed(3, "1-1-1") == [Admitted()]
    assert uploads.queue == ["1-1-2"]


def test_commits_come_in_the_order_of_the_releases() -> None:
    uploads = full()
    uploads.shared(1, 0, "1-1-2")
    assert uploads.shared(1, 1, "1-1-2") == []
    uploads.shared(2, 0, "1-1-1")
    assert uploads.shared(2, 1, "1-1-1") == [CommitNow("1-1-1")]
    assert uploads.committed(3, "1-1-1") == [CommitNow("1-1-2")]


def test_a_checkpoint_without_files_is_committed_at_once() -> None:
    assert Uploads(0).released(0, "1-1-1", NOTE, []) == [CommitNow("1-1-1")]


def test_a_report_waits_while_bytes_move_and_drops_the_waiting_one_when_they_stand_still() -> None:
    uploads = full()
    uploads.admit(0)
    for second in range(1, 100):
        uploads.moved(second, 0, second * 1000)
        assert uploads.tick(second) == []
    assert uploads.deadline() == 99 + STALL_S
    uploads.moved(110, 0, 99 * 1000)
    assert uploads.tick(99 + STALL_S - 0.1) == []
    dropped, admitted = uploads.tick(99 + STALL_S)
    assert isinstance(dropped, Drop) and dropped.id == "1-1-2"
    assert admitted == Admitted()
    assert uploads.queue == ["1-1-1"]


def test_while_storage_stands_still_later_reports_do_not_wait_again() -> None:
    uploads = full()
    uploads.admit(0)
    uploads.tick(STALL_S)
    uploads.released(STALL_S, "1-1-3", NOTE, [0])
    outputs = uploads.admit(STALL_S + 1)
    assert [type(o) for o in outputs] == [Drop, Admitted]


def test_a_withdrawn_report_is_not_admitted() -> None:
    uploads = full()
    uploads.admit(0)
    uploads.withdraw()
    assert uploads.committed(1, "1-1-1") == []
    assert uploads.deadline() is None


def test_a_lost_share_drops_the_checkpoint_for_all() -> None:
    uploads = full()
    outputs = uploads.lost(1, "1-1-1", "worker 1: gone")
    assert outputs == [Drop("1-1-1", "worker 1: gone")]
    assert uploads.lost(1, "1-1-1", "again") == []


@given(
    st.lists(st.tuples(st.sampled_from(["admit", "share", "commit", "wait", "lost"]), st.integers(0, 2)), max_size=80)
)
def test_never_more_than_two_and_nobody_waits_for_a_free_place(moves: list[tuple[str, int]]) -> None:
    uploads, now, released, asking, ready = Uploads(0), 0.0, 0, False, []
    for what, value in moves:
        outputs: list[Any] = []
        if what == "admit" and not asking:
            asking = True
            outputs = uploads.admit(now)
        elif what == "share" and uploads.queue:
            outputs = uploads.shared(now, value, uploads.queue[value % len(uploads.queue)])
        elif what == "commit" and ready:
            outputs = uploads.committed(now, ready.pop(0))
        elif what == "lost" and uploads.queue:
            id_ = uploads.queue[value % len(uploads.queue)]
            ready = [r for r in ready if r != id_]
            outputs = uploads.lost(now, id_, "gone")
        elif what == "wait":
            now += 7.0
            outputs = uploads.tick(now)
        while outputs:
            output = outputs.pop(0)
            if isinstance(output, Admitted):
                assert asking
                asking = False
                released += 1
                outputs += uploads.released(now, f"1-1-{released}", NOTE, [0, 1, 2])
            elif isinstance(output, CommitNow) and output.id not in ready:
                ready.append(output.id)
        assert len(uploads.queue) <= PLACES
        assert not (asking and len(uploads.queue) < PLACES)
        assert set(ready) <= set(uploads.queue[:1])
