"""A spare worker on a cluster: it is up beside those that train, takes the place of one that is lost, and another is
made behind it.
"""

from __future__ import annotations

import pytest

from support import e2e, gated
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

STEADY = ("--pause", "0.3", "--steps", "1000")
"""Reports all the time, and never comes to its end here."""


def _spares(namespace: str) -> str:
    return str(e2e.job("count", namespace)["status"]["workers"].get("spares", ""))


def test_a_spare_takes_the_place_of_a_worker_whose_pod_is_deleted(namespace: str) -> None:
    spec = {"runtime": {"spareWorkers": 1}}
    gated.start("count", namespace, *STEADY, spec=spec)
    gated.wait_for_step("count", namespace, 3)
    e2e.eventually("the spare is ready", lambda: _spares(namespace) == "1/1")
    spare = e2e.job("count", namespace)["status"]["spares"]
    before = e2e.uids("count", namespace)
    assert len(before) == 3
    trains = sorted(pod for pod in before if not pod.endswith(f"-{spare}"))
    e2e.kubectl("delete", "pod", trains[1], "-n", namespace, "--wait=false")
    gated.wait_for_starts("count", namespace, 2, 2)
    gated.wait_for_step("count", namespace, 0, attempt=2)
    job = e2e.job("count", namespace)
    last = job["status"]["history"][-1]
    assert (last["endCause"], job["status"]["attempt"]["fromSpares"]) == (contract.REASON_POD_LOST, spare)
    after = e2e.uids("count", namespace)
    assert after[f"count-{spare}"] == before[f"count-{spare}"], "the pod that stood by trains"
    e2e.eventually("another stands by", lambda: _spares(namespace) == "1/1")
    assert e2e.job("count", namespace)["status"]["spares"] != spare
    assert gated.counted(job) == 1
