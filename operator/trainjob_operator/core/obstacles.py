"""What keeps pods from coming up, and the reason that a condition gives for it.

Called by `conditions.py`, by `gang.py` (the scheduler's words) and by `observe.py` (whose events to read). Decides
nothing: a pod that does not come up is told about, and waited for. The words of kubelet, scheduler and API server are
passed on as they are, bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainjob_api import contract
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.core.moments import after, elapsed

UNSCHEDULABLE = "Unschedulable"
"""The scheduler's word for a pod that fits no node now."""
GATED = "SchedulingGated"
"""The scheduler's word for a pod that a gate holds back."""

_REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "ErrImagePull",
            "ImagePullBackOff",
            "InvalidImageName",
            "ErrImageNeverPull",
            "ImageInspectError",
            "RegistryUnavailable",
            "SignatureValidationFailed",
        ),
        contract.REASON_IMAGE_PULL,
    ),
    **dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume"), contract.REASON_VOLUME_MOUNT),
    "CreateContainerConfigError": contract.REASON_CONTAINER_CONFIG,
    **dict.fromkeys(
        (
            "CreateContainerError",
            "RunContainerError",
            "StartError",
            "ContainerCannotRun",
            "PostStartHookError",
            "FailedCreatePodSandBox",
            "NetworkNotReady",
        ),
        contract.REASON_CONTAINER_START,
    ),
    "CrashLoopBackOff": contract.REASON_CRASH_LOOP,
    contract.REASON_INIT_FAILED: contract.REASON_INIT_FAILED,
}
"""The kubelet's words, in containers' states and in events, by what they mean to a user."""


@dataclass(frozen=True)
class Obstacle:
    """Why some pods do not come up: a condition's reason, and the words of whoever said so."""

    reason: str
    words: str
    """`digits-3: ImagePullBackOff: no such image`, or the API server's sentence."""
    pods: int = 1
    """How many it holds up."""
    pod: str = ""
    """The one that the words are about."""


def reason_of(pod: PodView) -> str | None:
    """The condition's reason for what the kubelet says of a pod; None: nothing is wrong with it that we know."""
    return _REASONS.get(pod.reason or "")


def of_starting(pods: Iterable[PodView]) -> Obstacle | None:
    """Of pods that have a node and are not up: the first one's that has a reason, and how many share it."""
    stuck = [pod for pod in pods if pod.scheduled and pod.phase is PodPhase.PENDING]
    named = [pod for pod in stuck if reason_of(pod)]
    if not named:
        spoken = next((pod for pod in stuck if pod.reason or pod.message), None)
        return Obstacle(contract.REASON_NOT_READY, word_of(spoken), pod=spoken.name) if spoken else None
    first = named[0]
    reason = reason_of(first) or contract.REASON_NOT_READY
    return Obstacle(reason, word_of(first), sum(1 for pod in named if reason_of(pod) == reason), first.name)


def of_unscheduled(pods: Iterable[PodView]) -> Obstacle | None:
    """Of pods without a node: the scheduler's word, if it has said anything."""
    waiting = [pod for pod in pods if not pod.scheduled and (pod.reason or pod.message)]
    first = next((pod for pod in waiting if pod.reason == UNSCHEDULABLE), next(iter(waiting), None))
    if first is None:
        return None
    reason = {UNSCHEDULABLE: contract.REASON_UNSCHEDULABLE, GATED: contract.REASON_GATED}.get(
        first.reason or "", contract.REASON_UNSCHEDULED
    )
    return Obstacle(reason, word_of(first))


_INVALID = (" is invalid", " cannot be handled as a ", "strict decoding error", "unable to parse quantit")
"""How an API server says that it is the pod itself that it does not understand."""


def of_refusals(refusals: Sequence[str]) -> Obstacle | None:
    """Of creates that the API server refused: its words."""
    if not refusals:
        return None
    quota = next((text for text in refusals if "exceeded quota" in text), None)
    text = quota or refusals[0]
    reason = (
        contract.REASON_QUOTA
        if quota
        else contract.REASON_INVALID_SPEC
        if any(word in text for word in _INVALID)
        else contract.REASON_FORBIDDEN
    )
    return Obstacle(reason, text)


def of_unanswered(text: str | None) -> Obstacle | None:
    """Of creates that the API server, or a webhook that it asks, could not take: what came instead of an answer."""
    return Obstacle(contract.REASON_CREATE_FAILING, text) if text else None


REFUSED = (contract.REASON_QUOTA, contract.REASON_FORBIDDEN)
"""Reasons that only the API server's words can give and only the next create can take back."""


def word_of(pod: PodView) -> str:
    """`digits-3: ImagePullBackOff: no such image`."""
    return f"{pod.name}: " + ": ".join(word for word in (pod.reason, pod.message) if word)


# --- Pods about which only events tell --------------------------------------------------------------------------------

LOOK_AFTER_S = 5.0
"""A pod that has a node and tells nothing for so long may have trouble that only its events name."""
LOOK_EVERY_S = (10.0, 60.0)
"""Such a pod is looked at again after half its age, between these bounds."""


def is_untold(pod: PodView, now: datetime) -> bool:
    """Whether the pod's events are worth a look."""
    return _is_silent(pod) and elapsed(now, _since(pod) or now) >= LOOK_AFTER_S


def look_again_at(pods: Iterable[PodView], now: datetime) -> datetime | None:
    """When the events of such pods should be looked at next; a pod that comes up or speaks asks for a look by
    itself.
    """
    ages = [
        elapsed(now, since)
        for pod in pods
        if (_is_silent(pod) or pod.from_event) and (since := _since(pod)) is not None
    ]
    if not ages:
        return None
    pauses = [
        LOOK_AFTER_S - age if age < LOOK_AFTER_S else min(max(age / 2, LOOK_EVERY_S[0]), LOOK_EVERY_S[1])
        for age in ages
    ]
    return after(now, min(pauses))


def _is_silent(pod: PodView) -> bool:
    return (
        pod.owned
        and pod.scheduled
        and pod.phase is PodPhase.PENDING
        and not pod.deleting
        and not pod.reason
        and not pod.message
    )


def _since(pod: PodView) -> datetime | None:
    return pod.scheduled_at or pod.created_at
