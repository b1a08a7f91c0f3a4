"""What an agent reports of its attempt: everything that is observed there, whole. Pure.

Called by `agent` for each report; what is of the agent itself it adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional

from trainjob_api import contract, cut

if TYPE_CHECKING:
    from trainjob.agent.attempts.attempt import Attempt


def of_attempt(
    attempt: Optional[Attempt], found_run: Optional[int], found_shown: Mapping[str, Any] = {}
) -> Dict[str, Any]:
    """Fields of `contract.AgentReport`. `found_run`: as storage told it at a look; None: no look has found one;
    `found_shown`: what is shown of that run, if it is complete.
    """
    if attempt is None:
        return {
            "attempt": 0,
            "quiet": True,
            "joined": False,
            "ranks": [],
            "begin": None,
            "lost_peers": [],
            "unreached_s": 0.0,
            "run": found_run,
            "resumed_from": None,
            "hang": None,
            **_of_leader(None),
            **found_shown,
        }
    return {
        "attempt": attempt.number,
        "quiet": not attempt.alive,
        "joined": attempt.joined_at_leader,
        "ranks": [rank.report() for rank in attempt.ranks],
        "begin": attempt.beginning.report(),
        "lost_peers": attempt.lost_peers,
        "unreached_s": round(attempt.unreached_s, 3),
        "run": found_run if attempt.run is None else attempt.run,
        "resumed_from": attempt.resumed_from,
        "hang": attempt.hang,
        **_of_leader(attempt),
        **(attempt.shown or found_shown),
    }


def _of_leader(attempt: Optional[Attempt]) -> Dict[str, Any]:
    """What rank 0's agent alone knows, once the join is answered."""
    leader = None if attempt is None else attempt.leader
    collectives, commits = (None, None) if leader is None else (leader.collectives, leader.commits)
    trouble = None if commits is None else commits.trouble
    return {
        "effort": None if attempt is None or collectives is None else attempt.beginning.effort(collectives.effort),
        "boundary": None if collectives is None else collectives.boundary,
        "stacks": None if collectives is None else collectives.asked.report,
        "stragglers": None if collectives is None else collectives.pace.report,
        "progress": None if collectives is None else collectives.progress,
        "latest": None if commits is None else commits.latest,
        "best": None if commits is None else commits.best,
        "checkpoint_count": 0 if commits is None else commits.count,
        "checkpoint_trouble": None if trouble is None else cut.within(trouble, contract.MESSAGE_LIMIT),
    }
