"""The trainer container as the kubelet tells of it. Pure, called by `manifests.py`."""

from __future__ import annotations

from dataclasses import dataclass

from trainjob_api import contract
from trainjob_operator.cluster import Manifest
from trainjob_operator.core.model import PodPhase

CRASH_LOOP = "CrashLoopBackOff"


@dataclass(frozen=True)
class TrainerState:
    """The trainer container as the kubelet tells of it; all empty before it said anything."""

    state: Manifest
    last: Manifest
    """`lastState.terminated`: its end before the one that `state` is about."""
    restarts: int | None
    starts_again: bool
    """It has ended, and by its restart rules the kubelet starts it again."""
    ready: bool | None
    """By its readiness probe, if it has one."""
    has_company: bool
    """A container beside it runs, or is to run. Sidecars among the init containers end by themselves when the others
    have.
    """

    @classmethod
    def of(cls, manifest: Manifest) -> TrainerState:
        containers = (manifest.get("spec") or {}).get("containers") or ()
        trainer: Manifest = next(
            (c for c in containers if c.get("name") == contract.TRAINER_CONTAINER), next(iter(containers), {})
        )
        statuses = (manifest.get("status") or {}).get("containerStatuses") or ()
        status: Manifest = next((status for status in statuses if status.get("name") == trainer.get("name")), {})
        state, last = dict(status.get("state") or {}), dict((status.get("lastState") or {}).get("terminated") or {})
        restarts = status.get("restartCount")
        again = (
            "terminated" in state
            and (manifest.get("status") or {}).get("phase") == "Running"
            and _restarts(trainer, state["terminated"])
        )
        company = any(
            "terminated" not in (other.get("state") or {})
            for other in statuses
            if other.get("name") != trainer.get("name")
        )
        ready = status.get("ready")
        return cls(
            state=state,
            last=state["terminated"] if again else last,
            restarts=restarts if isinstance(restarts, int) else None,
            starts_again=again,
            ready=ready if isinstance(ready, bool) else None,
            has_company=company,
        )

    @property
    def waiting(self) -> Manifest:
        return self.state.get("waiting") or {}

    @property
    def ended(self) -> Manifest:
        """How it ended, if it does not run."""
        if "terminated" in self.state:
            return self.state["terminated"] or {}
        return self.last if self.waiting.get("reason") == CRASH_LOOP else {}


def _restarts(container: Manifest, ended: Manifest) -> bool:
    """Whether the kubelet starts the container again after this end: its rules first, then its own restart policy."""
    for rule in container.get("restartPolicyRules") or ():
        codes = rule.get("exitCodes") or {}
        named = ended.get("exitCode") in (codes.get("values") or ())
        if named == (codes.get("operator") == "In") and codes:
            return bool(rule.get("action") == "Restart")
    policy = container.get("restartPolicy")
    return bool(policy == "Always" or (policy == "OnFailure" and ended.get("exitCode") != 0))


def phase_of(pod_phase: str | None, trainer: TrainerState) -> PodPhase:
    state = trainer.state
    if "terminated" in state and not trainer.starts_again:
        return PodPhase.SUCCEEDED if state["terminated"].get("exitCode") == 0 else PodPhase.FAILED
    if pod_phase == "Failed":  # evicted, node shut down: the kubelet may never say more of the container
        return PodPhase.FAILED
    if "running" in state:
        return PodPhase.RUNNING
    if "waiting" in state or trainer.starts_again:
        return PodPhase.PENDING
    return {"Running": PodPhase.RUNNING, "Succeeded": PodPhase.SUCCEEDED}.get(pod_phase or "", PodPhase.PENDING)
