"""What the API server dated is put by our clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from support.virtual_time import EPOCH
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.loop.server_clock import APART_S, ServerClock

MADE = PodView(slot=0, name="digits-0", uid="pod-0", phase=PodPhase.RUNNING, created_at=EPOCH, finished_at=EPOCH)


def apart(seconds: float) -> timedelta:
    """What is made of a pod that the API server made at EPOCH, when our clock is so many seconds ahead of its."""
    clock = ServerClock()
    clock.told(EPOCH, EPOCH + timedelta(seconds=seconds))
    (pod,) = clock.by_ours((MADE,))
    assert pod.created_at is not None and pod.finished_at == EPOCH, "a kubelet's clock is another one"
    assert (pod.scheduled_at, pod.gone_by) == (None, None)
    return pod.created_at - EPOCH


@pytest.mark.parametrize("seconds", [3600.0, -3600.0, APART_S])
def test_what_was_made_just_now_was_made_just_now_by_our_clock(seconds: float) -> None:
    assert apart(seconds) == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [0.0, APART_S - 0.1, 0.1 - APART_S])
def test_whole_seconds_and_the_way_of_an_answer_count_as_none(seconds: float) -> None:
    assert apart(seconds) == timedelta(0)


def test_moments_do_not_move_to_and_fro() -> None:
    clock = ServerClock()
    seen = []
    for seconds in (3600.0, 3601.0, 3599.2, 3600.0 - APART_S, 0.4):
        clock.told(EPOCH, EPOCH + timedelta(seconds=seconds))
        (pod,) = clock.by_ours((replace(MADE, scheduled_at=EPOCH, gone_by=EPOCH),))
        assert pod.created_at == pod.scheduled_at == pod.gone_by
        seen.append((pod.gone_by or EPOCH) - EPOCH)
    assert [moment.total_seconds() for moment in seen] == [3600.0, 3600.0, 3600.0, 3595.0, 0.0]


def test_while_nothing_is_known_nothing_is_put_otherwise() -> None:
    clock = ServerClock()
    clock.told(None, EPOCH)
    pods = (MADE,)
    assert clock.by_ours(pods) is pods
