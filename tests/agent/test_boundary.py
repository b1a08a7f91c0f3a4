"""Whether ranks are kept behind a saved checkpoint: only while a planned change is wished, and ever more rarely in vain."""

from __future__ import annotations

from trainjob.agent.barriers.boundary import AGAIN_S, Boundary


def test_without_a_wish_nobody_is_kept() -> None:
    assert not Boundary().reach(0.0)


def test_a_wish_keeps_them_at_the_next_checkpoint() -> None:
    boundary = Boundary()
    assert not boundary.want("a")
    assert boundary.reached is None and boundary.reach(1.0) and boundary.reached == "a"


def test_a_wish_that_is_taken_back_or_replaced_lets_them_go() -> None:
    boundary = Boundary()
    boundary.want("a")
    boundary.reach(1.0)
    assert not boundary.want("a"), "the same word again"
    assert boundary.want("b") and boundary.want(None)
    boundary.leave(2.0)
    assert boundary.reached is None and not boundary.reach(2.0)


def test_a_wait_in_vain_is_repeated_ever_later() -> None:
    boundary = Boundary()
    boundary.want("a")
    now = 0.0
    for pause_s in (AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S):
        assert boundary.reach(now)
        boundary.leave(now)
        assert not boundary.reach(now + pause_s - 0.1)
        now += pause_s
    boundary.want("b")
    assert boundary.reach(now + 0.1), "another wish has its own waits"
