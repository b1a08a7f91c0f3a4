"""The table of causes: what each reason means for the budget, for the worker, for the ranks and for what comes after.

Asked by `failures.py` and `pod_ends.py` (what an incident is), `budget.py` (what it costs), `decide.py` (may the
verdict wait), `instruct.py` and `pod_actions.py` (how ranks and pods are stopped), `status.py` and
`process/metrics.py` (is the next attempt a restart). Whoever adds a reason to the contract writes its row here, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainjob_api import contract

PLANNED_GRACE_S = 5.0
"""How long ranks may take to stop when nothing has failed; after a failure they are killed at once."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What a reason means where it ends an attempt, or the job. The defaults are those of a failure of the user's."""

    counted: bool = True
    """It costs a failure, unless a rule of failurePolicy says something else."""
    preemption: bool = False
    """The machine or its network was the cause, not what ran there: counted apart."""
    strikes: bool = False
    """The worker whose rank ended so is suspect: twice without progress, and its pod is replaced."""
    early: bool = False
    """The next start waits, however long this attempt took."""
    hopeless: bool = False
    """The job is set up wrongly: it fails at once, whatever the budget."""
    until_reported: bool = False
    """What is hopeless so is only as long as the job has never reported: what has run before can run again."""
    deferrable: bool = False
    """A verdict that rests on a count, not on what a rank said: it waits for a look whether the job is complete."""
    planned: bool = False
    """Somebody wished it: ranks and pods get time to stop."""
    restart: bool = True
    """The attempt that follows is a restart; not one after a begin or a suspension."""

    @property
    def grace_s(self) -> float:
        """How long ranks may take to stop because of it."""
        return PLANNED_GRACE_S if self.planned else 0.0


_FAILURE = Cause()
_SUSPECT = Cause(strikes=True)
_EARLY = Cause(early=True)
_HOPELESS = Cause(hopeless=True)
_FREE = Cause(counted=False)
_PREEMPTION = Cause(counted=False, preemption=True)
_COUNT = Cause(counted=False, deferrable=True)
_PLANNED = Cause(counted=False, planned=True)
_BEGIN = Cause(counted=False, restart=False)
_STATE = _FREE
"""It says how something stands, and ends nothing."""

CAUSES: Mapping[str, Cause] = {
    # Ranks ended.
    contract.REASON_COMPLETED: _FREE,
    contract.REASON_USER_ERROR: _SUSPECT,
    contract.REASON_EXIT: _SUSPECT,
    contract.REASON_SIGNAL: _SUSPECT,
    contract.REASON_OOM: _SUSPECT,
    contract.REASON_CONTAINER_RESTARTED: _SUSPECT,
    contract.REASON_COMMUNICATION: _FAILURE,
    contract.REASON_RANK_ENDED_EARLY: _FAILURE,
    contract.REASON_HANG: _SUSPECT,
    contract.REASON_STORAGE: _EARLY,
    contract.REASON_STAGING_FULL: _EARLY,
    contract.REASON_INTERNAL: _SUSPECT,
    contract.REASON_START: replace(_HOPELESS, until_reported=True),
    contract.REASON_NOT_SHARED: _HOPELESS,
    contract.REASON_DAMAGED: _FREE,
    contract.REASON_INTERRUPTED: _FREE,
    # Pods ended.
    contract.REASON_PEERS_UNREACHABLE: replace(_EARLY, strikes=True),
    contract.REASON_POD_LOST: _FAILURE,
    contract.REASON_POD_FAILED: _FAILURE,
    contract.REASON_START_FAILED: _EARLY,
    contract.REASON_INIT_FAILED: _EARLY,
    contract.REASON_PREEMPTED: _PREEMPTION,
    contract.REASON_WORKER_UNREACHABLE: _PREEMPTION,
    contract.REASON_NODE_REFUSED: replace(_PREEMPTION, early=True),
    # Verdicts on the job.
    contract.REASON_LIMIT: _COUNT,
    contract.REASON_PREEMPTION_LIMIT: _COUNT,
    contract.REASON_NO_PROGRESS: _COUNT,
    contract.REASON_RULE: _FREE,
    contract.REASON_DEADLINE: _FREE,
    contract.REASON_STARTUP_DEADLINE: _FREE,
    # Somebody wished it.
    contract.REASON_SUSPENDED: replace(_PLANNED, restart=False),
    contract.REASON_CANCELLED: replace(_PLANNED, restart=False),
    contract.REASON_SCALED: _PLANNED,
    contract.REASON_RESIZED: _PLANNED,
    contract.REASON_GAVE_WAY: _PLANNED,
    contract.REASON_RESTART_REQUESTED: _PLANNED,
    contract.REASON_STRAGGLER: _PLANNED,
    contract.REASON_SPEC_CHANGED: _PLANNED,
    # Why an attempt began.
    contract.REASON_STARTED: _BEGIN,
    contract.REASON_RESUMED: _BEGIN,
    contract.REASON_GANG: _FREE,
} | dict.fromkeys(
    (
        contract.REASON_INVALID_SPEC,
        contract.REASON_NOT_SUSPENDED,
        contract.REASON_CREATED,
        contract.REASON_CREATING,
        contract.REASON_SERVICE_CONFLICT,
        contract.REASON_SERVICE_RESTORED,
        contract.REASON_SERVED_ELSEWHERE,
        contract.REASON_AUTHORITY_LOST,
        contract.REASON_SCHEDULED,
        contract.REASON_UNSCHEDULED,
        contract.REASON_UNSCHEDULABLE,
        contract.REASON_GATED,
        contract.REASON_QUOTA,
        contract.REASON_FORBIDDEN,
        contract.REASON_CREATE_FAILING,
        contract.REASON_IMAGE_PULL,
        contract.REASON_VOLUME_MOUNT,
        contract.REASON_CONTAINER_CONFIG,
        contract.REASON_CONTAINER_START,
        contract.REASON_CRASH_LOOP,
        contract.REASON_BAD_NODE,
        contract.REASON_READY,
        contract.REASON_NOT_READY,
        contract.REASON_RUNNING,
        contract.REASON_STARTING,
        contract.REASON_BACK_OFF,
        contract.REASON_HEALTHY,
        contract.REASON_WARNING,
        contract.REASON_CHECKPOINT_FAILING,
        contract.REASON_UNREACHABLE,
        contract.REASON_BELOW_TARGET,
        contract.REASON_SPARES_READY,
        contract.REASON_SPARES_COMING,
        contract.REASON_SPARE_TAKEN,
        contract.REASON_AT_TARGET,
        contract.REASON_CHECKING,
        contract.REASON_NOT_FINISHED,
        contract.REASON_FINISHED,
    ),
    _STATE,
)


def cause_of(reason: str | None) -> Cause:
    """The row of a reason. One that a newer version wrote into a status counts as a plain failure."""
    return CAUSES.get(reason or "", _FAILURE)
