"""How an attempt's ranks were started, from what its members' agents say."""

from __future__ import annotations

from datetime import UTC, datetime

from trainjob_api.contract import ForksReport
from trainjob_api.v1alpha1 import Forks
from trainjob_operator.core import forks
from trainjob_operator.core.model import AgentView


def view(slot: int, told: ForksReport | None, *, joined: bool = True) -> AgentView:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return AgentView(slot=slot, pod_uid=str(slot), boot=1, heard_at=now, address="", joined=joined, forks=told)


def test_ranks_are_summed_and_the_first_reason_stands() -> None:
    told = [
        view(0, {"ranks": 2, "why": None, "learned": ["pandas"]}),
        view(1, {"ranks": 1, "why": "no memory", "learned": ["numpy", "pandas"]}),
        view(2, {"ranks": 0, "why": "others", "learned": []}),
        view(3, None),
    ]
    assert forks.merged(None, told) == Forks(ranks=3, reason="no memory", learned=["numpy", "pandas"])


def test_nothing_is_said_before_ranks_are_started() -> None:
    assert forks.merged(None, [view(0, {"ranks": 0, "why": None, "learned": []})]) is None
    assert forks.merged(None, [view(0, {"ranks": 2, "why": None, "learned": []}, joined=False)]) is None


def test_what_was_told_stays_where_an_agent_is_gone() -> None:
    before = Forks(ranks=3, reason="no memory", learned=["pandas"])
    assert forks.merged(before, []) == before
    assert forks.merged(before, [view(0, {"ranks": 2, "why": None, "learned": []})]) == before
    assert forks.merged(before, [view(0, {"ranks": 2, "why": None, "learned": ["timm"]})]) == Forks(
        ranks=3, reason="no memory", learned=["timm"]
    )


def test_what_the_first_member_tells_that_has_learned_is_passed_on() -> None:
    agents = {
        0: view(0, None),
        1: view(1, {"ranks": 1, "why": None, "learned": []}),
        2: view(2, {"modules": "pandas"}),
        3: view(3, {"modules": "timm"}),
    }
    assert forks.passed_on([0, 1, 2, 3], agents) == "pandas"
    assert forks.passed_on([3, 2], agents) == "timm"
    assert forks.passed_on([0, 1, 9], agents) == ""
    assert forks.passed_on([*range(100, 100 + forks.ASKED), 2], agents) == "", "of thousands not all are asked"
