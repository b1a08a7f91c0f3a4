"""What Prometheus is told: bounded labels, jobs that come and go, restarts counted once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.virtual_time import VirtualClock
from trainjob_api import contract
from trainjob_api.v1alpha1 import HistoryEntry, PartsMs, TrainJob
from trainjob_operator.loop.means import Turn
from trainjob_operator.process.health import Health
from trainjob_operator.process.metrics import Metrics, resource_of

JOBS = f"/apis/{contract.API_VERSION}/namespaces/team/trainjobs"


class _Parts:
    """Stands for queue, coordinator and recorder."""

    def __init__(self) -> None:
        self.refusals = Counter({"wrong token": 2})
        self.syncs = 7
        self.written, self.withheld, self.failed = 3, 1, 0

    def waiting(self) -> int:
        return 5

    def connected(self) -> int:
        return 4

    def unknown(self) -> int:
        return 6


def job(name: str, phase: str, attempt: int, cause: str = contract.REASON_STARTED) -> TrainJob:
    at = datetime(2030, 1, 1, tzinfo=UTC).isoformat()
    running = {
        "number": attempt,
        "state": "Running",
        "startedAt": at,
        "members": "0",
        "workers": 1,
        "worldSize": 1,
        "cause": cause,
    }
    document: dict[str, Any] = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": at,
        },
        "spec": {
            "workers": 1,
            "template": {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "t.py"]}]}},
        },
        "status": {"phase": phase, "attempt": running},
    }
    return TrainJob.model_validate(document)


def turn(document: TrainJob) -> Turn:
    return Turn(key=document.key, seconds=0.01, outcome="ok", job=document)


def samples(metrics: Metrics) -> dict[str, float]:
    text = metrics.exposition()[0].decode()
    return {
        f"{sample.name}{''.join(f' {value}' for _, value in sorted(sample.labels.items()))}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def leading() -> Metrics:
    metrics = Metrics(Health(VirtualClock()))
    parts = _Parts()
    metrics.leads(parts, parts, parts)
    return metrics


def test_jobs_are_counted_by_phase_and_leave_when_they_are_gone() -> None:
    metrics = leading()
    for document in (job("a", "Running", 1), job("b", "Running", 1), job("c", "Pending", 1)):
        metrics.job(document)
    assert (samples(metrics)["trainjob_jobs Running"], samples(metrics)["trainjob_jobs Pending"]) == (2, 1)
    metrics.job(job("a", "Complete", 1))
    metrics.turn(Turn(key=("team", "b"), seconds=0.01, outcome="ok", job=None))
    shown = samples(metrics)
    assert shown["trainjob_jobs Complete"] == 1
    assert "trainjob_jobs Running" not in shown


def test_a_failed_turn_does_not_make_a_job_disappear() -> None:
    metrics = leading()
    metrics.job(job("a", "Running", 1))
    metrics.turn(turn(job("a", "Running", 1)))
    metrics.turn(Turn(key=("team", "a"), seconds=30.0))
    shown = samples(metrics)
    assert shown["trainjob_jobs Running"] == 1
    assert (shown["trainjob_turns_total ok"], shown["trainjob_turns_total error"]) == (1, 1)
    assert shown["trainjob_turn_seconds_count"] == 2


def test_restarts_are_counted_by_cause_and_only_those_that_were_seen() -> None:
    metrics = leading()
    metrics.job(job("a", "Running", 3, contract.REASON_OOM))
    assert not any(name.startswith("trainjob_restarts_total ") for name in samples(metrics))
    for _ in range(3):
        metrics.job(job("a", "Running", 4, contract.REASON_USER_ERROR))
    metrics.job(job("a", "Running", 5, contract.REASON_RESUMED))
    shown = {name: value for name, value in samples(metrics).items() if name.startswith("trainjob_restarts_total ")}
    assert shown == {f"trainjob_restarts_total {contract.REASON_USER_ERROR}": 1}


def test_pods_are_counted_from_calls_that_took_effect() -> None:
    metrics = leading()
    pods = "/api/v1/namespaces/team/pods"
    metrics.call("operator", "POST", pods, 201, 0.1)
    metrics.call("operator", "POST", pods, 409, 0.1)
    metrics.call("operator", "POST", pods, 0, 30.0)
    metrics.call("operator", "DELETE", f"{pods}/a-0", 200, 0.1)
    shown = samples(metrics)
    assert (shown["trainjob_pods_created_total"], shown["trainjob_pods_deleted_total"]) == (1, 1)
    assert shown["trainjob_api_calls_total operator 0 pods POST"] == 1


def test_what_the_parts_count_is_shown() -> None:
    shown = samples(leading())
    assert shown["trainjob_leader"] == 1
    assert shown["trainjob_queue_depth"] == 5
    assert shown["trainjob_agents_connected"] == 4 and shown["trainjob_unknown_connections"] == 6
    assert shown["trainjob_syncs_total"] == 7
    assert shown["trainjob_sync_refusals_total wrong token"] == 2
    assert shown["trainjob_events_total withheld"] == 1


def test_a_path_names_its_kind_and_never_a_name() -> None:
    assert resource_of(f"{JOBS}/digits") == "trainjobs"
    assert resource_of(f"{JOBS}/digits/status") == "trainjobs/status"
    assert resource_of("/api/v1/namespaces/pods/services/pods") == "services"
    assert resource_of("/api/v1/namespaces/team/pods?watch=true") == "pods"
    assert resource_of("/apis/coordination.k8s.io/v1/namespaces/x/leases/y") == "leases"
    assert resource_of("/api/v1/namespaces/team/configmaps/a") == "other"
    assert resource_of("/version") == "other"


def test_the_process_itself_is_measured() -> None:
    found = samples(Metrics(Health(VirtualClock())))
    assert found["process_resident_memory_bytes"] > 10 * 2**20 and found["process_cpu_seconds_total"] > 0


def restarted(attempt: int, **parts: int) -> TrainJob:
    """A job whose newest attempt began again after a failure, with what is known of it."""
    found = job("digits", "Running", attempt, contract.REASON_SIGNAL)
    assert found.status.attempt is not None
    running = found.status.attempt.model_copy(update={"parts_ms": PartsMs(**parts)})
    return found.model_copy(update={"status": found.status.model_copy(update={"attempt": running})})


def test_a_recovery_is_taken_once_when_its_first_step_is_made() -> None:
    metrics = leading()
    metrics.job(job("digits", "Running", 1))
    metrics.job(restarted(2, detected=40, waited=0, decided=10))
    assert not [name for name in samples(metrics) if name.startswith("trainjob_recovery_seconds_count")]
    whole = restarted(2, detected=40, waited=0, decided=10, stopped=20, joined=10, forked=20, first_step=400)
    metrics.job(whole)
    metrics.job(whole)
    found = samples(metrics)
    assert (found["trainjob_recovery_seconds_count total"], found["trainjob_recovery_seconds_sum total"]) == (1, 0.5)
    assert found["trainjob_recovery_seconds_sum first_step"] == 0.4


def test_a_new_leader_does_not_take_again_what_the_one_before_has_taken() -> None:
    metrics = leading()
    metrics.job(restarted(2, detected=40, first_step=400))
    assert not [name for name in samples(metrics) if name.startswith("trainjob_recovery_seconds_count")]


def test_a_recovery_that_is_first_seen_when_its_attempt_has_ended_is_taken_once() -> None:
    metrics = leading()
    metrics.job(job("digits", "Running", 1))
    whole = restarted(2, detected=40, first_step=400)
    attempt = whole.status.attempt
    assert attempt is not None
    ended = attempt.model_copy(update={"state": "Ended"})
    entry = HistoryEntry(
        attempt=2, cause=attempt.cause, started_at=attempt.started_at, world_size=1, parts_ms=attempt.parts_ms
    )
    status = whole.status.model_copy(update={"attempt": ended, "history": [entry]})
    metrics.job(whole.model_copy(update={"status": status}))
    found = samples(metrics)
    assert (found["trainjob_recovery_seconds_count total"], found["trainjob_recovery_seconds_sum total"]) == (1, 0.44)
