"""What ended agents left in their pods' termination messages, as if they had said it to the coordinator.

Called by `manifests.py` (is there a last word?) and `observe.py` (what the rules see of it). It counts most when nobody
listened: the operator was away while the job completed or a rank broke, and the pods have ended since. Untrusted like
any report, and checked like one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainjob_api import contract, last_word
from trainjob_api.contract import RankReport
from trainjob_api.last_word import LastWord
from trainjob_operator.agents.reports import BadReport, read_report
from trainjob_operator.cluster import Manifest
from trainjob_operator.core.model import AgentView, PodView
from trainjob_operator.core.moments import aware
from trainjob_operator.core.phrases import how_rank_ended

OWN_EXITS = (contract.EXIT_OK, *contract.AGENT_EXITS)
"""A container that ended otherwise was killed: whatever its message says, no agent ended there."""


def last_word_in(ended: Manifest) -> LastWord | None:
    """The agent's last word in the terminated state of a container that is not started again."""
    message = ended.get("message")
    if not isinstance(message, str) or ended.get("exitCode") not in OWN_EXITS:
        return None
    return last_word.from_text(message)


def sentence(word: LastWord) -> str:
    """For people: the second half of `digits-1 ended with exit code 81 (...)`."""
    if word.completed:
        return "training is complete"
    if word.rank is None:
        return word.text
    report = RankReport(exit_code=word.exit_code, signal=word.signal)
    if word.error or word.text:
        report["error"] = {"type": word.error, "message": word.text}
    return f"rank {word.rank} {how_rank_ended(word.kind, report)}"


def with_last_words(heard: Mapping[int, AgentView], pods: Iterable[PodView]) -> dict[int, AgentView]:
    """What agents last said, by slot, with what the ended ones left behind: nothing that was heard is newer."""
    views = dict(heard)
    for pod in pods:
        view = views.get(pod.slot)
        if (
            pod.last_word is None
            or pod.finished_at is None
            or not pod.owned
            or (view is not None and view.pod_uid != pod.uid)
        ):
            continue
        left = _view(pod, pod.last_word, aware(pod.finished_at))
        if left is not None:
            views[pod.slot] = left if view is None else _merged(view, left)
    return views


def _merged(view: AgentView, left: AgentView) -> AgentView:
    """What the coordinator heard knows more of the same attempt; of a newer one it knows nothing."""
    if left.attempt != view.attempt:
        if left.attempt > view.attempt:
            return replace(left, clock_offset=view.clock_offset)  # one pod, one clock
        return replace(view, completed=view.completed or left.completed)
    ranks = {rank["rank"]: rank for rank in view.ranks}
    for rank in left.ranks:
        if ranks.get(rank["rank"], {}).get("state") != contract.RANK_ENDED:
            ranks[rank["rank"]] = rank
    told, lacks = (view, left) if view.completed else (left, view)  # what is told of a complete run is the newest
    return replace(
        view,
        quiet=True,
        progress=told.progress or lacks.progress,
        latest=told.latest or lacks.latest,
        best=told.best or lacks.best,
        checkpoint_count=told.checkpoint_count or lacks.checkpoint_count,
        joined=view.joined or left.joined,
        completed=view.completed or left.completed,
        run=left.run if view.run is None else view.run,
        ranks=tuple(ranks.values()),
    )


def _view(pod: PodView, word: LastWord, at: datetime) -> AgentView | None:
    document: dict[str, Any] = {
        "namespace": "-",
        "job": "-",
        "job_uid": "-",
        "slot": pod.slot,
        "pod": pod.name,
        "pod_uid": pod.uid,
        "boot": (pod.restarts or 0) + 1,
        "seq": 0,
        "attempt": word.attempt,
        # The run is known since the join was answered.
        "joined": word.run is not None,
        "completed": word.completed,
        "run": word.run,
        "ranks": [] if word.rank is None else [_rank(word)],
    }
    try:
        return read_report({**document, **last_word.shown_in(word.shown)}).view(at)
    except BadReport:
        return None


def _rank(word: LastWord) -> dict[str, Any]:
    error = (
        {"type": word.error, "message": word.text, "communication": word.communication}
        if word.error or word.text
        else None
    )
    rank = {
        "rank": word.rank,
        "state": contract.RANK_ENDED,
        "kind": word.kind,
        "exit_code": word.exit_code,
        "signal": word.signal,
        "ended_at": word.ended_at,
    }
    return {**rank, "error": error}
