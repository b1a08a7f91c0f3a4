"""`tj doctor` names nodes on which ranks of several jobs broke or were slow, by the rule that the operator goes by."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from trainjob.cli.cluster import findings
from trainjob.cli.finding import Level
from trainjob.launch.cluster.api import Api
from trainjob_api import contract


class Jobs:
    """An API server that has these jobs."""

    def __init__(self, *nodes: str) -> None:
        self._nodes = nodes

    def items(self, path: str) -> list[dict[str, Any]]:
        assert path == f"/apis/{contract.API_VERSION}/namespaces/team/{contract.PLURAL}"
        return [self._job(number, node) for number, node in enumerate(self._nodes)]

    def _job(self, number: int, node: str) -> dict[str, Any]:
        failure = {"attempt": 1, "time": datetime.now(UTC).isoformat(), "reason": contract.REASON_HANG, "node": node}
        return {
            "metadata": {"name": f"job-{number}", "namespace": "team", "uid": str(number), "resourceVersion": "1"},
            "spec": {"workers": 1, "template": {"spec": {"containers": [{"name": "trainer", "image": "i"}]}}},
            "status": {"lastFailure": failure},
        }


@pytest.mark.parametrize(("nodes", "bad"), [(["b", "b"], "b"), (["b", "c"], None), (["b"], None), ([], None)])
def test_two_jobs_make_a_node_bad(nodes: list[str], bad: str | None) -> None:
    found = findings.nodes(findings.Patient(cast(Api, Jobs(*nodes)), "team", "system"))
    assert found.level is (Level.WARN if bad else Level.OK)
    if bad:
        assert "b: job-0 (Hang), job-1 (Hang)" in found.found and found.mend.endswith("kubectl cordon b")
