"""The coordinator's memory and judgement, without I/O: what each agent last said, and what each is told.

Used by `coordinator.py` alone. Agents are answered only from a job that was read or written (`commit`), so that nobody
hears of an attempt that is not committed. Losing all of this costs nothing: agents say everything again in their next
sync.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum

from trainjob_api import contract
from trainjob_api.contract import Instruction
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.reports import Asker, Report
from trainjob_operator.cluster import JobKey, is_older
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.instruct import instruct
from trainjob_operator.core.model import AgentView, PodView
from trainjob_operator.core.moments import after, aware
from trainjob_operator.core.pods.naming import parse_slots, spare_slots

UNLISTED_KEPT = timedelta(minutes=5)
"""How long the word of a pod is kept that no list has shown (yet)."""
GONE_LIMIT = 10_000
"""UIDs of deleted jobs that are remembered; a forgotten one costs one more look at the cluster."""

_PROGRESS_FIELDS = frozenset({"begin", "forks", "progress", "latest", "best", "checkpoint_count"})
_TRAINING_FIELDS = frozenset({"uploads"})
"""What changes with each checkpoint while ranks run; once they have ended, the next attempt may wait for it."""
_BESIDE_FIELDS = frozenset({"warming"})
"""What matters alone of workers that wait beside those that train: spares, and those by which a job is to grow."""
_CLOCK_FIELDS = frozenset({"heard_at", "clock_offset", "unreached_s", "effort"})
_COMPARED = tuple(field.name for field in fields(AgentView) if field.name not in _CLOCK_FIELDS)


class Outdated(Exception):
    """The report is older than one that was already seen from this pod."""


class News(Enum):
    """What a report brought compared with the one before."""

    NOTHING = "nothing"
    PROGRESS = "progress"
    """Only what is shown to people."""
    MATTERS = "matters"
    """Something that a rule may act on."""


@dataclass(frozen=True)
class _Committed:
    job: TrainJob
    slots: Mapping[str, int]
    """Slot by UID of the job's own pods."""
    uids: Mapping[int, str]
    """The other way round."""


@dataclass(frozen=True)
class _Heard:
    job_uid: str
    order: tuple[int, int]
    view: AgentView


class Roster:
    """Agents by job and pod UID."""

    def __init__(self, master_key: bytes) -> None:
        self._master_key = master_key
        self._committed: dict[JobKey, _Committed] = {}
        self._heard: dict[JobKey, dict[str, _Heard]] = {}
        self._gone: dict[tuple[JobKey, str], None] = {}
        """By name too: a pod may claim any UID, but only its own job's name."""

    # --- What the cluster holds ---------------------------------------------------------------------------------------

    def commit(self, job: TrainJob, pods: Iterable[PodView], now: datetime) -> bool:
        """The job as it was read or written, with its pods; whether that differs from what was known. Of two states of
        a job the newer one stays: a turn may have looked before progress was written. A look at the job that bore
        the name before is none.
        """
        known = self._committed.get(job.key)
        if known is not None and is_older(job, known.job):
            if known.job.metadata.uid != job.metadata.uid:
                return False
            job = known.job
        slots = {pod.uid: pod.slot for pod in pods if pod.owned}
        new = _Committed(job, slots, {slot: uid for uid, slot in slots.items()})
        if known is not None and known.job.metadata.uid != job.metadata.uid:
            self.mark_gone(job.key, known.job.metadata.uid)
        self._committed[job.key] = new
        heard = self._heard.get(job.key, {})
        for uid in [
            uid for uid, said in heard.items() if uid not in new.slots and now - said.view.heard_at > UNLISTED_KEPT
        ]:
            del heard[uid]
        return (
            known is None
            or known.slots != new.slots
            or known.job.metadata.resource_version != job.metadata.resource_version
        )

    def forget(self, key: JobKey) -> None:
        """A read of the cluster found no job of that name."""
        known = self._committed.pop(key, None)
        if known is not None:
            self.mark_gone(key, known.job.metadata.uid)

    def leave(self, key: JobKey) -> None:
        """The job is another's to look after: nobody is told anything of it."""
        self._committed.pop(key, None)

    def mark_gone(self, key: JobKey, job_uid: str) -> None:
        """The cluster holds no job of that UID, and never will again."""
        self._gone[key, job_uid] = None
        while len(self._gone) > GONE_LIMIT:
            del self._gone[next(iter(self._gone))]
        heard = {uid: said for uid, said in self._heard.pop(key, {}).items() if said.job_uid != job_uid}
        if heard:
            self._heard[key] = heard

    # --- What agents say ----------------------------------------------------------------------------------------------

    def accept(self, report: Report, now: datetime) -> News:
        """Take a report in. Raises Outdated for one that is older than what this pod said last."""
        if (report.key, report.job_uid) in self._gone:
            return News.NOTHING
        heard = self._heard.setdefault(report.key, {})
        before = heard.get(report.pod_uid)
        if before is not None and report.order < before.order:
            raise Outdated(
                f"boot {report.boot} seq {report.seq} is older than boot {before.order[0]} seq {before.order[1]}, "
                "which has been seen"
            )
        view = report.view(now)
        heard[report.pod_uid] = _Heard(report.job_uid, report.order, view)
        if before is not None and self._was_missed(report.key, before.view, now):
            return News.MATTERS
        return _difference(before.view if before else None, view, lambda: self._is_beside(report.key, view.slot))

    def _is_beside(self, key: JobKey, slot: int) -> bool:
        known = self._committed.get(key)
        if known is None:
            return True  # the look that is under way may have taken its word before
        status, attempt = known.job.status, known.job.status.attempt
        joins = attempt is not None and attempt.ended_at is None and slot not in parse_slots(attempt.members)
        return joins or (bool(status.spares) and slot in spare_slots(status))

    def _was_missed(self, key: JobKey, before: AgentView, now: datetime) -> bool:
        """Whether it is news by itself that the agent speaks: it had fallen silent, and a job that is to grow may wait
        for it; or it speaks for the first time since the attempt ended, and a worker that its peers had lost is waited
        for.
        """
        if now >= after(before.heard_at, SILENT_S):
            return True
        known = self._committed.get(key)
        attempt = known.job.status.attempt if known is not None else None
        return attempt is not None and attempt.ended_at is not None and before.heard_at <= aware(attempt.ended_at)

    def views(self, key: JobKey) -> Mapping[str, AgentView]:
        """What the agents of a job last said, by pod UID."""
        return {uid: said.view for uid, said in self._heard.get(key, {}).items()}

    def silence_due(self, key: JobKey, now: datetime, listening_since: datetime) -> datetime | None:
        """When the next agent of the job that speaks, or may be expected to, will have been silent for too long;
        None: nobody is waited for.
        """
        known = self._committed.get(key)
        if known is None or known.job.status.finished or known.job.spec.suspend:
            return None
        listed, heard = parse_slots(known.job.status.slots), self._heard.get(key, {})
        last = [
            heard[uid].view.heard_at if uid in heard else listening_since
            for uid, slot in known.slots.items()
            if slot in listed
        ]
        return min(
            (due for moment in last if (due := after(max(moment, listening_since), SILENT_S)) > now), default=None
        )

    def lost_peers(self, report: Report) -> list[str]:
        """UIDs of the pods that a member says it cannot reach."""
        known = self._committed.get(report.key)
        attempt = known.job.status.attempt if known is not None else None
        if known is None or attempt is None or attempt.number != report.attempt:
            return []
        members = parse_slots(attempt.members)
        lost = {members[index] for index in report.lost_peers if index < len(members)}
        return [known.uids[slot] for slot in sorted(lost) if slot in known.uids]

    def is_of_the_leader(self, report: Report) -> bool:
        """Whether it is the word of the worker whose address the members of the newest attempt are told. No other
        changes what anybody else is told.
        """
        known = self._committed.get(report.key)
        attempt = known.job.status.attempt if known is not None else None
        return attempt is not None and parse_slots(attempt.members)[:1] == (report.slot,)

    def tells_of_a_break(self, report: Report) -> bool:
        """Whether a member says that a rank of the newest attempt broke."""
        known = self._committed.get(report.key)
        attempt = known.job.status.attempt if known is not None else None
        return attempt is not None and attempt.number == report.attempt and report.has_broken_ranks

    def who_knows_progress(self, report: Report) -> list[str]:
        """UID of the pod of rank 0, when another member reports that a rank of the running attempt broke."""
        known = self._committed.get(report.key)
        attempt = known.job.status.attempt if known is not None else None
        if known is None or attempt is None or not self.tells_of_a_break(report):
            return []
        uids = [known.uids[slot] for slot in parse_slots(attempt.members)[:1] if slot in known.uids]
        return [uid for uid in uids if uid != report.pod_uid]

    # --- What agents are told -----------------------------------------------------------------------------------------

    def is_unknown(self, asker: Asker) -> bool:
        """Whether it speaks of a job that is neither committed here nor known to be gone."""
        known = self._committed.get(asker.key)
        return (asker.key, asker.job_uid) not in self._gone and (
            known is None or known.job.metadata.uid != asker.job_uid
        )

    def instruction(self, asker: Asker) -> Instruction:
        """What the reporting agent is to do."""
        if (asker.key, asker.job_uid) in self._gone:
            why = f"TrainJob {asker.key[0]}/{asker.key[1]} (UID {asker.job_uid}) no longer exists"
            return Instruction(do=contract.DO_EXIT, exit_code=contract.EXIT_REMOVED, grace_s=0.0, reason=why)
        known = self._committed.get(asker.key)
        if known is None or known.job.metadata.uid != asker.job_uid or known.slots.get(asker.pod_uid) != asker.slot:
            # Not read yet, or a pod that no list has shown yet: what runs keeps running.
            return Instruction(do=contract.DO_WAIT)
        word, _ = instruct(known.job, _Words(self._heard.get(asker.key, {}), known.uids), asker.slot, asker.pod_uid)
        if word.get("do") == contract.DO_RUN:
            word["secret"] = attempt_secret(self._master_key, asker.job_uid, word["attempt"])
        return word

    def has_news_for(self, asker: Asker) -> bool:
        """Whether the agent has not acknowledged its present instruction."""
        return asker.acknowledged != self.instruction(asker)


class _Words(Mapping[int, AgentView]):
    """What agents said, by slot. Looked up one by one: all polls of a job are looked through at once, and each needs
    the words of two."""

    def __init__(self, heard: Mapping[str, _Heard], uids: Mapping[int, str]) -> None:
        self._heard = heard
        self._uids = uids

    def __getitem__(self, slot: int) -> AgentView:
        return self._heard[self._uids[slot]].view

    def __iter__(self) -> Iterator[int]:
        return (slot for slot, uid in self._uids.items() if uid in self._heard)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@functools.lru_cache(maxsize=4096)
def attempt_secret(master_key: bytes, job_uid: str, attempt: int) -> str:
    """By which the agents of one attempt know each other: derived, never stored. One that missed a newer attempt does
    not know that one's.
    """
    return hmac.new(master_key, f"{job_uid}\n{attempt}".encode(), hashlib.sha256).hexdigest()


def _difference(before: AgentView | None, after: AgentView, is_beside: Callable[[], bool]) -> News:
    if before is None:
        return News.MATTERS
    changed = {name for name in _COMPARED if getattr(before, name) != getattr(after, name)}
    if changed & _BESIDE_FIELDS and not is_beside():
        changed -= _BESIDE_FIELDS
    if not changed:
        return News.NOTHING
    shown = _PROGRESS_FIELDS if after.quiet else _PROGRESS_FIELDS | _TRAINING_FIELDS
    return News.PROGRESS if changed <= shown else News.MATTERS
