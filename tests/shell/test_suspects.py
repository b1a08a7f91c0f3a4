"""What the loop remembers of nodes, as it comes by the jobs."""

from __future__ import annotations

from datetime import timedelta

from support.core import make_job
from support.virtual_time import EPOCH
from trainjob_api import contract
from trainjob_api.bad_nodes import bad_nodes
from trainjob_api.v1alpha1 import Failure, TrainJob, TrainJobStatus
from trainjob_operator.cluster import NodeSeen
from trainjob_operator.loop.suspects import Suspects


def job(name: str, node: str = "b", minutes: float = 0.0, namespace: str = "team") -> TrainJob:
    time = EPOCH + timedelta(minutes=minutes)
    failure = Failure(attempt=1, time=time, reason=contract.REASON_POD_LOST, node=node)
    made = make_job(TrainJobStatus(last_failure=failure))
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": name, "namespace": namespace})})


def names(suspects: Suspects, minutes: float = 0.0, namespace: str = "team") -> list[str]:
    now = EPOCH + timedelta(minutes=minutes)
    return [node.name for node in bad_nodes(suspects.told(namespace, now), now)]


def test_jobs_of_one_namespace_together_make_a_node_bad_for_an_hour() -> None:
    suspects = Suspects()
    suspects.look(job("one"), EPOCH)
    suspects.look(job("one"), EPOCH)
    assert names(suspects) == []
    suspects.look(job("two", namespace="other"), EPOCH)
    assert names(suspects) == [] and names(suspects, namespace="other") == []
    suspects.look(job("two", minutes=10), EPOCH + timedelta(minutes=10))
    assert names(suspects, 10) == names(suspects, 59) == ["b"]
    assert names(suspects, 61) == [], "the first word is too old by then, and one job alone proves nothing"


def test_a_later_failure_elsewhere_does_not_clear_the_first_node() -> None:
    suspects = Suspects()
    for made in (job("one"), job("two"), job("one", node="c", minutes=1)):
        suspects.look(made, EPOCH)
    assert names(suspects, 2) == ["b"]


def test_a_new_leader_knows_it_from_the_jobs_and_old_words_count_for_nothing() -> None:
    suspects, late = Suspects(), EPOCH + timedelta(minutes=61)
    for made in (job("one"), job("two")):
        suspects.look(made, late)
    assert names(suspects, 61) == []
    again = Suspects()
    for made in (job("one"), job("two")):
        again.look(made, EPOCH + timedelta(minutes=30))
    assert names(again, 30) == ["b"]


def test_what_a_clock_that_was_ahead_dated_counts_for_an_hour_from_when_it_was_heard() -> None:
    suspects, ahead = Suspects(), 24 * 60.0
    for minute in range(0, 25 * 60, 7):
        for name in ("one", "two"):
            suspects.look(job(name, minutes=ahead), EPOCH + timedelta(minutes=minute))
        assert names(suspects, minute) == (["b"] if minute < 60 else []), minute


def test_what_was_said_of_a_node_says_nothing_of_another_that_bears_its_name_now() -> None:
    suspects = Suspects()
    suspects.node(NodeSeen("b", None, EPOCH - timedelta(days=9)))
    for made in (job("one"), job("two")):
        suspects.look(made, EPOCH + timedelta(minutes=1))
    assert names(suspects, 1) == ["b"]
    suspects.node(NodeSeen("b", None))
    assert names(suspects, 2) == ["b"], "it may be the same again"
    suspects.node(NodeSeen("b", None, EPOCH + timedelta(minutes=3)))
    assert names(suspects, 4) == []
    for made in (job("one", minutes=5), job("two", minutes=6)):
        suspects.look(made, EPOCH + timedelta(minutes=6))
    assert names(suspects, 6) == ["b"]


def test_namespaces_without_jobs_are_forgotten() -> None:
    suspects = Suspects()
    for number in range(50):
        suspects.look(job("one", namespace=f"branch-{number}"), EPOCH)
    suspects.look(job("one", minutes=61), EPOCH + timedelta(minutes=61))
    assert len(suspects) == 1
