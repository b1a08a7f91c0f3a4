"""What is said of a start that takes long."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.jobs import NOW, attempt, job
from trainjob.launch.local.slow_start import AFTER_S, sentence
from trainjob.launch.outcome.log_choice import rank_of
from trainjob_operator.core.model import AgentView

START = datetime.fromtimestamp(NOW, UTC)


def view(slot: int, *, warming: bool = False, **begin: int) -> AgentView:
    return AgentView(
        slot=slot,
        pod_uid=str(slot),
        boot=1,
        heard_at=START,
        address="",
        attempt=1,
        warming=warming,
        begin={"told": NOW, **begin},  # type: ignore[typeddict-item]
    )


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([view(0, warming=True), view(1)], "its workers import torch, then its ranks start"),
        ([view(0), view(1)], "its workers prepare the start of its ranks"),
        (
            [view(0, joined=10, forked=20, stopped=0), view(1, joined=10, forked=20, stopped=0)],
            "its ranks run, and import modules or prepare their data; `tj stack digits` shows where they are",
        ),
        (
            [view(at, joined=10, forked=20, stopped=0, group=30) for at in (0, 1)],
            "its ranks are ready, and none has called report() yet; `tj stack digits` shows where they are",
        ),
    ],
)
def test_a_slow_start_says_what_is_under_way_and_how_to_look(views: list[AgentView], said: str) -> None:
    running = job({"attempt": attempt()})
    assert sentence(running, views, START + timedelta(seconds=AFTER_S - 0.1)) is None
    assert sentence(running, views, START + timedelta(seconds=AFTER_S)) == f"attempt 1 began 5 s ago: {said}"


@pytest.mark.parametrize(("number", "printed", "is_said"), [(1, False, True), (1, True, False), (2, False, False)])
def test_ranks_that_are_ready_are_spoken_of_only_where_nothing_was_seen_of_the_job(
    number: int, printed: bool, is_said: bool
) -> None:
    """A long epoch without a report is no alarm: the lines of its batches show that it trains."""
    views = [replace(view(at, joined=10, forked=20, stopped=0, group=30), attempt=number) for at in (0, 1)]
    late, running = START + timedelta(seconds=60), job({"attempt": attempt(number)})
    assert (sentence(running, views, late, printed=printed) is not None) == is_said
    importing = [replace(view(at, joined=10, forked=20, stopped=0), attempt=number) for at in (0, 1)]
    assert "import modules" in str(sentence(running, importing, late, printed=printed))


@pytest.mark.parametrize(
    ("status", "begin"),
    [({"attempt": attempt()}, {"first_step": 40}), ({"attempt": attempt(state="Ended")}, {}), ({}, {})],
    ids=["it trains", "it is over", "there is none"],
)
def test_what_trains_or_has_not_begun_says_nothing(status: dict[str, Any], begin: dict[str, int]) -> None:
    assert sentence(job(status), [view(0, **begin), view(1, **begin)], START + timedelta(seconds=60)) is None


def test_only_a_ranks_own_lines_count_as_printed() -> None:
    assert (rank_of("r00 | epoch 0"), rank_of("r0123 | x")) == (0, 123)
    assert (rank_of("agent | forks 2 ranks"), rank_of("Traceback"), rank_of("")) == (None, None, None)


def test_a_start_that_waits_for_storage_is_told_by_its_warning() -> None:
    held = [replace(view(0), warning="Attempt 1 cannot begin yet, the job's storage is tried again: full"), view(1)]
    assert sentence(job({"attempt": attempt()}), held, START + timedelta(seconds=60)) is None
