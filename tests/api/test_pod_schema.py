"""pod_schema.py: misspelt, misplaced and mistyped fields of a pod template."""

from __future__ import annotations

from typing import Any

import pytest

from support.trainjobs import document
from trainjob_api import pod_schema
from trainjob_api.problems import InvalidTrainJob
from trainjob_api.validation import parse_trainjob

POD = "spec.template.spec"
TRAINER = f"{POD}.containers.0"
AT = f"{POD}.containers[0]"


@pytest.mark.parametrize(
    ("place", "value", "field", "says"),
    [
        (f"{POD}.nodeSelectors", {"gpu": "a100"}, f"{POD}.nodeSelectors", "did you mean nodeSelector?"),
        (f"{POD}.node_selector", {"gpu": "a100"}, f"{POD}.node_selector", "did you mean nodeSelector?"),
        (f"{TRAINER}.imagePullPolicyy", "Always", f"{AT}.imagePullPolicyy", "did you mean imagePullPolicy?"),
        (f"{TRAINER}.resouces", {"limits": {"nvidia.com/gpu": 1}}, f"{AT}.resouces", "did you mean resources?"),
        (f"{TRAINER}.resources", {"limit": {"cpu": 1}}, f"{AT}.resources.limit", "did you mean limits?"),
        (f"{TRAINER}.limits", {"cpu": 1}, f"{AT}.limits", "into the container's resources"),
        (f"{TRAINER}.tolerations", [], f"{AT}.tolerations", "belongs to the pod"),
        (f"{POD}.env", [], f"{POD}.env", "belongs to a container"),
        (f"{TRAINER}.env", {"A": "b"}, f"{AT}.env", "must be a list"),
        (f"{TRAINER}.env", [{"name": "LR", "value": 1}], f"{AT}.env[0].value", "must be text; put it in quotes"),
        (f"{TRAINER}.env", [{"name": "A", "valu": "1"}], f"{AT}.env[0].valu", "did you mean value?"),
        (f"{POD}.hostNetwork", "true", f"{POD}.hostNetwork", "must be true or false"),
        (f"{POD}.terminationGracePeriodSeconds", "30", f"{POD}.terminationGracePeriodSeconds", "whole number"),
        (f"{POD}.terminationGracePeriodSeconds", True, f"{POD}.terminationGracePeriodSeconds", "whole number"),
        (f"{POD}.nodeSelector", ["gpu"], f"{POD}.nodeSelector", "must be a map"),
        (f"{POD}.nodeSelector", {"gpu": True}, f"{POD}.nodeSelector[gpu]", "must be text"),
        (
            f"{TRAINER}.resources",
            {"limits": {"memory": "16GB"}},
            f"{AT}.resources.limits[memory]",
            "did you mean 16G?",
        ),
        (f"{TRAINER}.resources", {"limits": {"cpu": "lots"}}, f"{AT}.resources.limits[cpu]", "must be a quantity"),
        (
            f"{POD}.volumes",
            [{"name": "data", "persistentVolumeClaim": {"claimname": "data"}}],
            f"{POD}.volumes[0].persistentVolumeClaim.claimname",
            "did you mean claimName?",
        ),
    ],
)
def test_what_the_api_server_would_drop_or_refuse_is_told_by_name(
    place: str, value: Any, field: str, says: str
) -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        parse_trainjob(document({place: value}))
    assert [(problem.field, says in problem.message) for problem in caught.value.problems] == [(field, True)]


@pytest.mark.parametrize(
    "changes",
    [
        {f"{TRAINER}.resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi", "cpu": 1.5, "x": "0"}}},
        {f"{POD}.volumes": [{"name": "tmp", "emptyDir": None}, {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}]},
        {f"{TRAINER}.livenessProbe": {"httpGet": {"path": "/", "port": "http"}}},
        {f"{TRAINER}.livenessProbe": {"httpGet": {"path": "/", "port": 80}}},
        {"spec.template.metadata": {"annotations": {"any.thing/at-all": "x"}, "labels": {"team": "a"}}},
        {f"{POD}.affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}},
    ],
)
def test_what_pods_have_is_no_problem_and_no_doubt(changes: dict[str, Any]) -> None:
    job = parse_trainjob(document(changes))
    assert pod_schema.pod_doubts(job.spec.template) == []


def test_a_field_that_a_newer_kubernetes_may_have_is_a_doubt_and_no_problem() -> None:
    job = parse_trainjob(document({f"{POD}.quantumEntanglement": {"pairs": 2}}))
    (doubt,) = pod_schema.pod_doubts(job.spec.template)
    assert doubt.field == f"{POD}.quantumEntanglement" and pod_schema.version() in doubt.message


def test_one_mistake_is_one_problem() -> None:
    with pytest.raises(InvalidTrainJob) as caught:
        parse_trainjob(document({f"{POD}.containers": {"name": "trainer"}}))
    assert [problem.field for problem in caught.value.problems].count(f"{POD}.containers") == 1
