"""How an attempt's ranks were started: as forks of warm parents, or in new interpreters and why. For people; no rule
acts on it. Called by `lifecycle.py`; of what was learned for that, workers that come later are told (`instruct.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from trainjob_api import contract
from trainjob_api.v1alpha1 import Forks
from trainjob_operator.core.model import AgentView

ASKED = 8
"""Members whose word is looked at: what one has learned all have, and a job may have thousands."""


def passed_on(members: Iterable[int], agents: Mapping[int, AgentView]) -> str:
    """What workers that were in no attempt yet may import ahead, by the word of the first member that has learned
    something; empty: nothing.
    """
    views = (agents.get(slot) for slot in islice(members, ASKED))
    told = (view.forks.get("modules", "") for view in views if view is not None and view.forks is not None)
    return next(filter(None, told), "")


def merged(before: Forks | None, views: Iterable[AgentView]) -> Forks | None:
    """Of the members' agents together: ranks are summed, the first one's reason stands for all, and what any has
    learned is named. What was written stays where they tell less, as when one of them is gone.
    """
    told = [view.forks for view in views if view.forks is not None and view.joined]
    ranks = sum(each.get("ranks", 0) for each in told)
    why = next((each["why"] for each in told if each.get("why")), None)
    learned = sorted({name for each in told for name in each.get("learned", ())})[: contract.LEARNED_LIMIT]
    if not ranks and why is None:
        return before
    if before is None:
        return Forks(ranks=ranks, reason=why, learned=learned)
    return Forks(ranks=max(ranks, before.ranks), reason=why or before.reason, learned=learned or before.learned)
