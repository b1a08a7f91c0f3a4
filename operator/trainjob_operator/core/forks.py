"""How an attempt's ranks were started: as forks of warm parents, or in new interpreters and why. For people; no rule
acts on it. Called by `lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainjob_api import contract
from trainjob_api.v1alpha1 import Forks
from trainjob_operator.core.model import AgentView


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
