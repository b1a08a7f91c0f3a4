"""What an agent leaves behind in its container's termination message: that the run is complete, or the first cause it
knows.

Called by `agent` as it ends. The coordinator may be out of reach by then; the pod's status keeps this line as long as
the pod.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, Optional

from trainjob_api import contract, last_word
from trainjob_api.contract import AgentReport, RankReport
from trainjob_api.last_word import LastWord

_NO_CAUSE = (None, contract.END_OK, contract.END_STOPPED)


def farewell(report: AgentReport, code: int, why: str) -> str:
    """The line, from the last report of this agent; `why` it ends, where no rank of it is to blame."""
    run, attempt = report.get("run"), report.get("attempt", 0)
    if report.get("completed"):
        return last_word.of_complete(run, attempt, _shown(report))
    rank = _first_broken(report)
    if rank is None:
        return last_word.to_text(LastWord(False, run, attempt, code, text=why))
    error = rank.get("error") or {}
    return last_word.to_text(
        LastWord(
            run=run,
            attempt=attempt,
            code=code,
            rank=rank.get("rank", 0),
            kind=rank.get("kind") or contract.END_EXIT,
            exit_code=rank.get("exit_code"),
            signal=rank.get("signal"),
            ended_at=rank.get("raised_at") or rank.get("ended_at"),
            communication=bool(error.get("communication")),
            error=error.get("type") or "",
            text=error.get("message") or "",
        )
    )


def _shown(report: AgentReport) -> Iterator[Dict[str, Any]]:
    """What is known of the run: all, then less and less, as there is little room. What is shown of a checkpoint has no
    metrics.
    """
    progress = dict(report.get("progress") or {})
    found: Dict[str, Any] = {"progress": progress} if progress.get("time") else {}
    for name in ("latest", "best"):
        checkpoint: Any = report.get(name)
        if checkpoint:
            found[name] = {key: value for key, value in checkpoint.items() if key != "metrics"}
    if found.get("latest"):
        found["checkpoint_count"] = report.get("checkpoint_count", 0)
    yield found
    found.pop("best", None)
    yield found
    for name in ("metrics", "non_finite"):
        progress.pop(name, None)
    yield found
    if found.get("latest"):
        found["latest"] = {"id": found["latest"]["id"]}
        yield found


def of_fault(why: str) -> str:
    """The line of an agent that could not even begin, or not end as it should."""
    return last_word.to_text(LastWord(False, None, 0, contract.EXIT_INTERNAL, text=why))


def leave(path: Optional[str], text: str) -> None:
    """Write it, if the kubelet has put the file there."""
    if path is None:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(descriptor, text.encode())
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _first_broken(report: AgentReport) -> Optional[RankReport]:
    """The earliest end that is neither a success nor the agent's own doing; one that only lost a peer comes after
    all others.
    """
    broken = [
        rank
        for rank in report.get("ranks", [])
        if rank.get("state") == contract.RANK_ENDED and rank.get("kind") not in _NO_CAUSE
    ]
    return min(
        broken,
        key=lambda rank: (
            bool((rank.get("error") or {}).get("communication")),
            rank.get("raised_at") or rank.get("ended_at") or 0.0,
            rank.get("rank", 0),
        ),
        default=None,
    )
