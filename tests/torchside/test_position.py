from __future__ import annotations

from typing import Any

import pytest

from trainjob.torch.position import Position


def _run(position: Position, batches: int, of: int, chosen: int | None = None) -> tuple[int, int]:
    """One iteration over an epoch of `of` batches that takes `batches` and then ends or is given up; (epoch, skip)."""
    run = position.begin(chosen)
    for _ in range(min(batches, of - run.skip)):
        position.handed_out(run)
    if run.skip + batches >= of:
        position.exhausted(run)
    else:
        position.given_up(run)
    return run.epoch, run.skip


def _resumed(saved: dict[str, Any], old: int = 1, new: int = 1) -> Position:
    position = Position()
    position.restore(saved, old, new, per_batch=None)
    return position


def test_epochs_count_up() -> None:
    position = Position()
    assert [_run(position, 10, 10) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]


def test_a_checkpoint_inside_the_loop_resumes_at_the_next_batch() -> None:
    position = Position()
    _run(position, 10, 10)
    run = position.begin()
    for _ in range(4):
        position.handed_out(run)
    again = _resumed(position.save())
    assert [_run(again, 10, 10) for _ in range(2)] == [(1, 4), (2, 0)]


def test_a_checkpoint_behind_the_last_batch_resumes_with_an_empty_iteration() -> None:
    position = Position()
    run = position.begin()
    for _ in range(10):
        position.handed_out(run)
    again = _resumed(position.save())
    assert [_run(again, 10, 10) for _ in range(2)] == [(0, 10), (1, 0)]


def test_a_checkpoint_after_the_loop_resumes_with_the_next_epoch() -> None:
    position = Position()
    _run(position, 10, 10)
    assert _run(_resumed(position.save()), 10, 10) == (1, 0)


def test_a_checkpoint_before_the_first_loop_resumes_at_the_beginning() -> None:
    assert _run(_resumed(Position().save()), 10, 10) == (0, 0)


def test_break_ends_an_epoch() -> None:
    position = Position()
    _run(position, 3, 10)
    saved = position.save()
    assert _run(position, 10, 10) == (1, 0)
    assert _run(_resumed(saved), 10, 10) == (1, 0)


def test_a_look_does_not_count() -> None:
    position = Position()
    assert [
        _run(position, 1, 10),
        _run(position, 10, 10),
        _run(position, 1, 10),
        _run(position, 0, 10),
        _run(position, 10, 10),
    ] == [
        (0, 0),
        (0, 0),
        (1, 0),
        (1, 0),
        (1, 0),
    ]


def test_a_look_does_not_use_up_the_resumed_epoch() -> None:
    position = Position()
    run = position.begin()
    for _ in range(4):
        position.handed_out(run)
    again = _resumed(position.save())
    assert _run(again, 1, 10) == (0, 4)
    twice = _resumed(again.save())
    assert [_run(again, 10, 10), _run(again, 10, 10)] == [(0, 4), (1, 0)]
    assert _run(twice, 10, 10) == (0, 4)


def test_a_report_makes_one_batch_count() -> None:
    position = Position()
    run = position.begin()
    position.handed_out(run)
    saved = position.save()
    position.given_up(run)
    assert _run(position, 10, 10) == (1, 0)
    assert _run(_resumed(saved), 10, 10) == (0, 1)


def test_the_users_epoch_wins() -> None:
    position = Position()
    run = position.begin(5)
    for _ in range(4):
        position.handed_out(run)
    saved = position.save()
    assert _run(_resumed(saved), 10, 10, chosen=5) == (5, 4)
    assert _run(_resumed(saved), 10, 10, chosen=6) == (6, 0)
    again = _resumed(saved)
    assert [_run(again, 10, 10, chosen=6), _run(again, 10, 10)] == [(6, 0), (7, 0)]


def test_an_older_iteration_is_not_counted() -> None:
    position = Position()
    old = position.begin()
    position.handed_out(old)
    position.handed_out(old)
    new = position.begin()
    position.handed_out(old)
    position.given_up(old)
    position.handed_out(new)
    assert new.epoch == 1
    assert position.save()["handed"] == 1 and position.save()["open"]


@pytest.mark.parametrize(
    ("old", "new", "handed", "skip", "exact"),
    [(2, 4, 6, 3, True), (4, 2, 3, 6, True), (2, 3, 4, 2, False), (3, 3, 5, 5, True)],
)
def test_another_number_of_ranks(old: int, new: int, handed: int, skip: int, exact: bool) -> None:
    position = Position()
    run = position.begin()
    for _ in range(handed):
        position.handed_out(run)
    again = Position()
    assert again.restore(position.save(), old, new, per_batch=None) is exact
    assert again.begin().skip == skip
