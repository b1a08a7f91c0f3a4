"""Sizes change while a job trains, with real agents and ranks: no step is lost, none is made twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from scenarios.test_pods import agent_of
from support.edited import Edited
from support.local_agent import use_agent, wait_for_the_operator
from support.scenario import Stage
from trainjob.launch.local import drive
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJobStatus
from trainjob_operator.cluster import Manifest

pytestmark = pytest.mark.slow

GRACE_S = 100
"""Of an evicted pod: more than it needs on a machine that others use too."""
RESIZE = Path(__file__).parent / "loops" / "resize.py"


def steps_of(stage: Stage) -> list[tuple[int, int, int]]:
    """(attempt, step, world size) of each step that rank 0 made."""
    path = stage.notes / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in lines)]


class Known:
    """What the operator knows of the job: of one that trains by the steps that it has made alone, a planned change waits
    for nothing.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._status: TrainJobStatus | None = None

    def trains(self, event: LocalEvent) -> bool:
        """Whether it has heard that the ranks which make steps now train, and of a report."""
        self._status = event.job.status if event.job is not None else self._status
        made, status = steps_of(self._stage), self._status
        attempt = status.attempt if status is not None else None
        if not made or attempt is None or status is None:
            return False
        heard = attempt.running_at is not None and status.progress.position > 0
        return heard and attempt.number == made[-1][0]


def test_two_four_two_workers_lose_no_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "MemoryCluster", Edited)
    wait_for_the_operator(monkeypatch)
    wishes, known = [(2, 4), (4, 2)], Known(stage)

    def edit(event: LocalEvent) -> None:
        trains, made = known.trains(event), steps_of(stage)
        size = made[-1][2] if made else 0
        if wishes and trains and size == wishes[0][0] and sum(world == size for _, _, world in made) >= 5:
            Edited.newest.edit(workers=wishes.pop(0)[1])
        elif not wishes and size == 2 and len({attempt for attempt, _, _ in made}) == 3:
            (stage.notes / "enough").touch()

    told = stage.run(stage.job(script=RESIZE), edit)
    assert told.status.holds("Complete"), told.text()
    made = steps_of(stage)
    assert [step for _, step, _ in made] == list(range(1, len(made) + 1)), told.text()
    sizes = {attempt: world for attempt, _, world in made}
    assert list(sizes.values()) == [2, 4, 2], told.text()
    ends = [entry.end_cause for entry in told.status.history]
    assert ends == [contract.REASON_SCALED, contract.REASON_SCALED, contract.REASON_COMPLETED]
    assert (told.status.failures.counted, told.status.failures.preemptions) == (0, 0)


@pytest.mark.parametrize(("how", "slot"), [("evicted", 0), ("evicted", 1), ("told to end", 1)])
def test_a_worker_that_goes_away_loses_no_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str, slot: int
) -> None:
    monkeypatch.setattr(drive, "MemoryCluster", Edited)
    wait_for_the_operator(monkeypatch)
    evicted: list[int] = []
    known = Known(stage)

    def evict(event: LocalEvent) -> None:
        trains, made = known.trains(event), steps_of(stage)
        if not evicted and trains and len(made) >= 5:
            evicted.append(slot)
            if how == "evicted":
                Edited.newest.evict(slot, grace_s=GRACE_S)
            else:
                os.kill(agent_of(stage, f"job-{slot}"), signal.SIGTERM)
        elif len({attempt for attempt, _, _ in made}) == 2:
            (stage.notes / "enough").touch()

    told = stage.run(stage.job(script=RESIZE), evict)
    assert told.status.holds("Complete"), told.text()
    made = steps_of(stage)
    assert [step for _, step, _ in made] == list(range(1, len(made) + 1)), told.text()
    ends = [entry.end_cause for entry in told.status.history]
    cause, books = (contract.REASON_PREEMPTED, (0, 1)) if how == "evicted" else (contract.REASON_POD_LOST, (1, 0))
    assert ends == [cause, contract.REASON_COMPLETED], told.text()
    assert (told.status.failures.counted, told.status.failures.preemptions) == books


@pytest.mark.parametrize("who", ["the launcher", "everybody"])
def test_a_local_stop_waits_for_no_word(stage: Stage, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Whoever waits for one does so until SIGKILL. A service manager's SIGTERM reaches the agents beside the launcher."""
    agents: list[int] = []

    class Beside(Edited):
        """In one moment for both: of agents that are told to end alone, the workers are replaced."""

        def update_job_spec(self, namespace: str, name: str, patch: Manifest) -> Manifest:
            for pid in agents if who == "everybody" else ():
                os.kill(pid, signal.SIGTERM)
            return super().update_job_spec(namespace, name, patch)

    monkeypatch.setattr(drive, "MemoryCluster", Beside)
    use_agent(monkeypatch, draining__ANSWER_S=10_000.0, draining__RANKS_DRAIN_S=10_000.0)

    def press(event: LocalEvent) -> None:
        if not agents and len(steps_of(stage)) >= 5:
            agents.extend(agent_of(stage, f"job-{slot}") for slot in (0, 1))
            raise KeyboardInterrupt

    told = stage.run(stage.job(script=RESIZE), press)
    assert told.outcome.interrupted, told.text()
    assert Edited.newest.exit_codes == [contract.EXIT_REMOVED] * 2, told.text()
