"""What keeps pods from coming up: each kind of trouble is its own reason, in the words of whoever knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.core import T0, World, is_steady, seconds
from trainjob_api import contract
from trainjob_operator.core import obstacles
from trainjob_operator.core.model import PodPhase, PodView


def said(world: World, type_: str) -> tuple[str, str]:
    condition = world.status.condition(type_)
    assert condition is not None and condition.status == "False"
    return condition.reason, condition.message


def starting(workers: int = 2) -> World:
    """All pods have a node; none runs."""
    world = World.of(workers=workers)
    world.turn()
    world.schedule(*range(workers))
    world.turn()
    return world


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("ErrImagePull", contract.REASON_IMAGE_PULL),
        ("ImagePullBackOff", contract.REASON_IMAGE_PULL),
        ("InvalidImageName", contract.REASON_IMAGE_PULL),
        ("ErrImageNeverPull", contract.REASON_IMAGE_PULL),
        ("CreateContainerConfigError", contract.REASON_CONTAINER_CONFIG),
        ("CreateContainerError", contract.REASON_CONTAINER_START),
        ("RunContainerError", contract.REASON_CONTAINER_START),
        ("FailedCreatePodSandBox", contract.REASON_CONTAINER_START),
        ("FailedMount", contract.REASON_VOLUME_MOUNT),
        ("FailedAttachVolume", contract.REASON_VOLUME_MOUNT),
        ("CrashLoopBackOff", contract.REASON_CRASH_LOOP),
        (contract.REASON_INIT_FAILED, contract.REASON_INIT_FAILED),
        ("SomethingNew", contract.REASON_NOT_READY),
    ],
)
def test_the_kubelets_word_becomes_a_reason(word: str, reason: str) -> None:
    world = starting()
    world.tick(5).set_pod(1, reason=word, message="its words")
    world.turn()
    assert said(world, "WorkersReady") == (reason, f"0 of 2 workers are ready; digits-1: {word}: its words")
    assert world.status.phase == "Starting" and not world.status.finished
    assert world.status.reason == reason


def test_how_many_share_it_is_told_once() -> None:
    world = starting(4)
    for slot in (0, 2, 3):
        world.set_pod(slot, reason="ErrImagePull", message="not found")
    world.turn()
    assert (
        said(world, "WorkersReady")[1] == "0 of 4 workers are ready; 3 are held up; digits-0: ErrImagePull: not found"
    )


def test_a_kubelet_that_says_the_same_in_turns_causes_no_writes() -> None:
    world = starting()
    world.set_pod(0, reason="ErrImagePull", message="manifest unknown")
    world.turn()
    for word, message in (
        ("ImagePullBackOff", "Back-off pulling image"),
        ("ErrImagePull", "manifest unknown again"),
    ) * 3:
        world.tick(30).set_pod(0, reason=word, message=message)
        assert is_steady(world)
    assert "manifest unknown" in said(world, "WorkersReady")[1]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("Unschedulable", contract.REASON_UNSCHEDULABLE),
        ("SchedulingGated", contract.REASON_GATED),
        (None, contract.REASON_UNSCHEDULED),
    ],
)
def test_the_schedulers_word_becomes_a_reason(word: str | None, reason: str) -> None:
    world = World.of(workers=2)
    world.turn()
    for slot in (0, 1):
        world.set_pod(slot, reason=word, message=word and "0/3 nodes are available")
    world.turn()
    got, message = said(world, "PodsScheduled")
    assert got == reason and message.startswith("0 of 2 pods have a node")
    assert ("0/3 nodes are available" in message) == (word is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'pods "digits-0" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4',
            contract.REASON_QUOTA,
        ),
        (
            'pods "digits-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            contract.REASON_FORBIDDEN,
        ),
        ('admission webhook "policy" denied the request: no', contract.REASON_FORBIDDEN),
        ('Pod "digits-0" is invalid: spec.containers[0].image: Required value', contract.REASON_INVALID_SPEC),
        (
            'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.nodeSelectors"',
            contract.REASON_INVALID_SPEC,
        ),
        (
            'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field',
            contract.REASON_INVALID_SPEC,
        ),
    ],
)
def test_refused_creates_are_a_condition(text: str, reason: str) -> None:
    world = World.of(workers=2)
    world.turn()
    world.lose_pod(0)
    world.lose_pod(1)
    world.refusals = (text,)
    world.turn()
    assert said(world, "ResourcesCreated") == (reason, text)
    assert world.status.reason == reason


def test_a_refusal_is_over_when_the_pods_are_there() -> None:
    world = World.of(workers=1)
    world.turn()
    world.lose_pod(0)
    world.refusals = ("exceeded quota: pods",)
    world.turn()
    assert said(world, "ResourcesCreated")[0] == contract.REASON_QUOTA
    world.refusals = ()
    world.turn()
    assert world.status.holds("ResourcesCreated")


def test_a_new_leader_does_not_forget_a_refusal_before_it_has_tried() -> None:
    world = World.of(workers=1)
    world.turn()
    world.lose_pod(0)
    world.refusals = ("exceeded quota: pods",)
    world.turn()
    before = world.status
    world.lose_pod(0)
    world.refusals = None
    world.turn()
    assert world.status == before


def pod(**fields: object) -> PodView:
    known: dict[str, object] = {"phase": PodPhase.PENDING, "scheduled": True, "scheduled_at": T0, **fields}
    return PodView(slot=0, name="digits-0", uid="a", **known)  # type: ignore[arg-type]


def test_events_are_read_of_pods_that_say_nothing_for_a_while() -> None:
    silent = pod()
    assert not obstacles.is_untold(silent, T0 + seconds(4)) and obstacles.is_untold(silent, T0 + seconds(5))
    late = T0 + seconds(60)
    for other in (
        pod(reason="ErrImagePull"),
        pod(scheduled=False),
        pod(phase=PodPhase.RUNNING),
        pod(deleting=True),
        pod(owned=False),
    ):
        assert not obstacles.is_untold(other, late)


def test_such_pods_are_looked_at_again_within_half_a_minute_at_first() -> None:
    silent, age = pod(), 0.0
    looks = []
    while age < 30:
        at = obstacles.look_again_at([silent], T0 + seconds(age))
        assert at is not None
        age = (at - T0).total_seconds()
        looks.append(age)
    assert looks == [5.0, 15.0, 25.0, 37.5]
    assert obstacles.look_again_at([replace(silent, phase=PodPhase.RUNNING)], T0) is None
    told = pod(reason="FailedMount", from_event=True)
    assert obstacles.look_again_at([told], T0 + seconds(3600)) == T0 + seconds(3660)


def test_a_start_without_a_word_asks_for_the_next_look() -> None:
    world = starting()
    decision = world.turn()
    assert decision.requeue_after == seconds(5)


def test_counts_alone_are_not_written_for_each_pod() -> None:
    world = starting(8)
    writes = 0
    for slot in range(7):
        world.tick(0.5).set_pod(slot, phase=PodPhase.RUNNING, ready=True)
        world.sync(slot)
        before = world.status
        writes += world.turn().status != before
    assert writes <= 1
    world.tick(5)
    world.turn()
    assert world.status.workers.summary == "7/8"
    world.set_pod(7, phase=PodPhase.RUNNING, ready=True)
    world.sync(7)
    world.turn()
    assert (world.status.workers.summary, world.attempt.number) == ("8/8", 1), "the last one counts at once"
