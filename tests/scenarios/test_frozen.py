"""An agent that is frozen keeps its connections and says nothing: its worker is replaced, and nothing is counted."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from scenarios.test_pods import agent_of
from support.local_agent import use_agent
from support.scenario import Stage
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_operator.agents import roster
from trainjob_operator.core.ends import silence

pytestmark = pytest.mark.slow


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody says something each second, and six seconds of silence count."""
    monkeypatch.setattr(contract, "LONG_POLL_S", 1.0)
    for module in (silence, roster):
        monkeypatch.setattr(module, "SILENT_S", 6.0)
    use_agent(monkeypatch, wire__pulse__BEAT_S=0.2, wire__pulse__SILENT_S=2.0)


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.usefixtures("impatient")
def test_the_worker_of_a_frozen_agent_is_replaced(stage: Stage, frozen: int) -> None:
    stopped: list[int] = []
    killed: list[int] = []

    def strike(event: LocalEvent) -> None:
        if len(stage.committed()) >= 3 and not stopped:
            stopped.append(agent_of(stage, f"job-{frozen}"))
            os.kill(stopped[0], signal.SIGSTOP)
            stage.go()
        attempt = event.job.status.attempt if event.job is not None else None
        if stopped and not killed and attempt is not None and attempt.number == 2:
            killed.extend(stopped)  # once: then its number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped[0], signal.SIGKILL)  # what is left of it: the kubelet would wait for it for 30 s

    told = stage.run(stage.job("--steps", "30", "--pause", "0.05", "--hold", "20"), strike)
    assert stopped and told.status.holds("Complete"), told.text()
    assert (told.attempts, told.status.failures.counted, told.status.failures.preemptions) == (2, 0, 1), told.text()
    failure = told.status.last_failure
    assert failure is not None and failure.reason == contract.REASON_WORKER_UNREACHABLE
    assert failure.message.endswith(f"and job-{1 - frozen} cannot reach it")
    assert told.starts(0)[-1][1] > 0, "it went on from a checkpoint"
