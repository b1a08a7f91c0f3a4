"""What of an attempt's time went into checkpoints, and what passed without a step."""

from __future__ import annotations

from trainjob.agent.barriers.effort import LEAST_S, Effort


def test_ranks_that_wait_for_a_checkpoint_are_counted_while_they_wait() -> None:
    effort = Effort()
    effort.saving(10.0)
    effort.saving(11.0)  # admitted, then staged
    assert effort.checkpoint_s(12.0) == 2.0
    effort.answered(13.0, saved=True)
    assert (effort.checkpoint_s(50.0), effort.saved_at) == (3.0, 13.0)
    effort.saving(60.0)
    effort.answered(64.0, saved=False)
    assert (effort.checkpoint_s(70.0), effort.saved_at) == (7.0, 13.0)


def test_a_pause_that_is_not_usual_is_a_stall_and_goes_on_while_it_lasts() -> None:
    effort = Effort()
    for step in range(10):
        effort.stepped(float(step))
    assert effort.stalled_s(9.0 + LEAST_S) == 0.0
    assert effort.stalled_s(9.0 + LEAST_S + 1.0) == LEAST_S
    effort.stepped(109.0)
    assert effort.stalled_s(110.0) == 99.0
    effort.stepped(110.0)
    assert effort.stalled_s(111.0) == 99.0


def test_steps_that_always_take_long_are_no_stalls() -> None:
    effort = Effort()
    for step in range(10):
        effort.stepped(step * 600.0)
    assert effort.stalled_s(5_400.0 + 3_000.0) == 0.0


def test_a_checkpoint_is_no_stall() -> None:
    effort = Effort()
    for step in range(10):
        effort.stepped(float(step))
    effort.saving(9.5)
    assert effort.stalled_s(500.0) == 0.0
    effort.answered(509.5, saved=True)
    effort.stepped(509.5)
    assert (effort.stalled_s(510.0), effort.checkpoint_s(510.0)) == (0.0, 500.0)


def test_a_script_whose_steps_are_not_known_yet_does_not_stall() -> None:
    effort = Effort()
    assert effort.stalled_s(10_000.0) == 0.0
    effort.stepped(10_000.0)
    assert effort.stalled_s(20_000.0) == 0.0


def test_what_passes_without_work_after_the_newest_checkpoint_is_known_apart() -> None:
    effort = Effort()
    for step in range(10):
        effort.stepped(float(step))
    assert effort.idle_s(109.0) == 99.0  # nothing is saved
    effort.stepped(109.0)
    effort.saving(109.0)
    effort.answered(112.0, saved=True)
    effort.stepped(112.0)
    assert (effort.checkpoint_s(113.0), effort.stalled_s(113.0), effort.idle_s(113.0)) == (3.0, 99.0, 0.0)
    effort.saving(113.0)
    assert effort.idle_s(118.0) == 5.0
    effort.answered(118.0, saved=False)
    assert effort.idle_s(218.0) == 5.0 + effort.stalled_s(218.0) - 99.0
