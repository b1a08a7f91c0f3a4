"""What the loop remembers of nodes, as it comes by the jobs."""

from __future__ import annotations

from datetime import timedelta

from support.core import make_job
from support.virtual_time import EPOCH
from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure, TrainJob, TrainJobStatus
from trainjob_operator.loop.suspects import Suspects


def job(name: str, node: str = "b", minutes: float = 0.0, namespace: str = "team") -> TrainJob:
    time = EPOCH + timedelta(minutes=minutes)
    failure = Failure(attempt=1, time=time, reason=contract.REASON_POD_LOST, node=node)
    made = make_job(TrainJobStatus(last_failure=failure))
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": name, "namespace": namespace})})


def names(suspects: Suspects, minutes: float = 0.0, namespace: str = "team") -> list[str]:
    return [node.name for node in suspects.bad(namespace, EPOCH + timedelta(minutes=minutes))]


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
