"""The CRD on a real API server: accepted, its rules decide as ours do, kubectl shows and scales what it should."""

from __future__ import annotations

import copy
import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.patience import HANG_S
from support.trainjobs import REMOVED, RULE_CASES, RuleCase, document
from trainjob_api import cel, contract, crd

pytestmark = on_apiserver

JOBS = f"/apis/{contract.API_VERSION}/namespaces/{{}}/{contract.PLURAL}"
STRICT = "?dryRun=All&fieldValidation=Strict"


def refusal(server: ApiServer, method: str, path: str, body: dict[str, Any]) -> str:
    """What the API server says against it; empty when it takes it."""
    try:
        server.request(method, path, body)
    except urllib.error.HTTPError as error:
        assert error.code == 422, (error.code, error.msg)
        return str(json.loads(error.msg)["message"])
    return ""


def expected(case: RuleCase) -> set[str]:
    """Messages of the rules that may speak at the case's field."""
    shown = {(".".join(rule.path) + (rule.shown_at or "")) or "metadata.name": set() for rule in cel.RULES}
    for rule in cel.RULES:
        shown[(".".join(rule.path) + (rule.shown_at or "")) or "metadata.name"].add(rule.message)
    return {
        message for path, messages in shown.items() if (case.refused_at or "").startswith(path) for message in messages
    }


@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: case.name)
def test_the_server_decides_as_we_do(apiserver: ApiServer, api_namespace: str, case: RuleCase) -> None:
    path = JOBS.format(api_namespace)
    body = document(case.changes)
    if case.old is None:
        said = refusal(apiserver, "POST", path + STRICT, body)
    else:
        stored = apiserver.request("POST", path, document(case.old))
        body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        said = refusal(apiserver, "PUT", f"{path}/{body['metadata']['name']}{STRICT}", body)
    if case.refused_at is None:
        assert said == ""
    else:
        assert any(message in said for message in expected(case)), f"at {case.refused_at}: {said!r}"


def test_unknown_fields_are_refused_where_they_are_strictly_looked_at(apiserver: ApiServer, api_namespace: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        apiserver.request("POST", JOBS.format(api_namespace) + STRICT, document({"spec.wrokers": 3}))
    assert 'unknown field "spec.wrokers"' in json.loads(refused.value.msg)["message"]


def test_nothing_but_workers_is_defaulted(apiserver: ApiServer, api_namespace: str) -> None:
    """Defaults that are written into objects cannot be changed by a later version."""
    written = document({"spec.workers": REMOVED})
    stored = apiserver.request("POST", JOBS.format(api_namespace), written)
    assert stored["spec"] == {**written["spec"], "workers": 1}


def test_a_template_is_kept_as_it_is(apiserver: ApiServer, api_namespace: str) -> None:
    container = {
        "name": "trainer",
        "command": ["python", "t.py"],
        "resources": {"limits": {"vendor.example/chip": 8}},
        "novelty": {"in": [1, {"a": "future"}]},
    }
    template = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"containers": [container], "unheardOf": True},
    }
    written = document({"spec.template": template})
    assert apiserver.request("POST", JOBS.format(api_namespace), written)["spec"]["template"] == template


# --- kubectl ----------------------------------------------------------------------------------------------------------


def described(server: ApiServer) -> dict[str, Any]:
    """The schema that `kubectl explain` reads."""
    with_ours = server.request("GET", f"/openapi/v3/apis/{contract.API_VERSION}")["components"]["schemas"]
    (found,) = [schema for name, schema in with_ours.items() if name.endswith(f".{contract.KIND}")]
    return dict(found)


def without_text(node: dict[str, Any], path: str) -> Iterator[str]:
    for name, child in node.get("properties", {}).items():
        at = f"{path}.{name}"
        if not child.get("description") and name != "metadata":
            yield at
        if at != ".spec.template":
            yield from without_text(child.get("items", child), at)


def test_every_field_has_a_text(apiserver: ApiServer) -> None:
    assert list(without_text(described(apiserver), "")) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tj", "A distributed PyTorch training job."),
        ("tj.spec.workers", "Worker pods."),
        ("tj.status.lastFailure.rank", "The rank that broke"),
    ],
)
def test_kubectl_explains(apiserver: ApiServer, path: str, text: str) -> None:
    assert text in apiserver.kubectl("explain", path).stdout


def test_kubectl_scales(apiserver: ApiServer, api_namespace: str) -> None:
    """Also where the manifest does not say how many there are."""
    apiserver.request("POST", JOBS.format(api_namespace), document({"spec.workers": REMOVED}))
    scale = apiserver.request("GET", f"{JOBS.format(api_namespace)}/digits/scale")
    assert scale["spec"]["replicas"] == 1
    apiserver.kubectl("scale", "tj/digits", "--replicas=5", "--current-replicas=1", "-n", api_namespace)
    job = apiserver.request("GET", f"{JOBS.format(api_namespace)}/digits")
    assert job["spec"]["workers"] == 5 and job["metadata"]["generation"] == 2


def test_the_scale_subresource_tells_of_the_pods(apiserver: ApiServer, api_namespace: str) -> None:
    path = f"{JOBS.format(api_namespace)}/digits"
    apiserver.request("POST", JOBS.format(api_namespace), document())
    apiserver.request(
        "PATCH", f"{path}/status", {"status": {"workers": {"ready": 2}, "selector": "trainjob.dev/job=digits"}}
    )
    assert apiserver.request("GET", f"{path}/scale")["status"] == {"replicas": 2, "selector": "trainjob.dev/job=digits"}


def test_the_columns_of_kubectl_get(apiserver: ApiServer, api_namespace: str) -> None:
    path = f"{JOBS.format(api_namespace)}/digits"
    apiserver.request("POST", JOBS.format(api_namespace), document())
    status = {
        "phase": "Running",
        "reason": "UserCodeError",
        "progress": {"step": 140, "percent": 70},
        "attempt": ATTEMPT,
        "lastFailure": FAILURE,
    }
    apiserver.request("PATCH", f"{path}/status", {"status": status})
    narrow, wide = (
        apiserver.kubectl("get", "tj", "-n", api_namespace, *more).stdout.splitlines() for more in ((), ("-o", "wide"))
    )
    head = ["NAME", *(column["name"].upper() for column in crd.COLUMNS if not column.get("priority"))]
    extra = [column["name"].upper() for column in crd.COLUMNS if column.get("priority")]
    assert " ".join(narrow[0].split()) == " ".join(head) and " ".join(wide[0].split()) == " ".join(head + extra)
    for word in ("digits", "Running", "140", "70"):
        assert word in narrow[1].split()
    assert "UserCodeError" in wide[1] and "<invalid>" not in wide[1]


ATTEMPT = {
    "number": 7,
    "state": "Running",
    "startedAt": "2026-01-01T00:00:00Z",
    "members": "0-1",
    "workers": 2,
    "worldSize": 2,
    "cause": "Started",
}
FAILURE = {"attempt": 6, "time": "2026-01-01T00:00:00Z", "reason": "UserCodeError", "exitCode": 1}


def test_get_all_shows_jobs(apiserver: ApiServer, api_namespace: str) -> None:
    apiserver.request("POST", JOBS.format(api_namespace), document())
    assert "trainjob.trainjob.dev/digits" in apiserver.kubectl("get", "all", "-n", api_namespace).stdout


def test_kubectl_waits_for_a_condition(apiserver: ApiServer, api_namespace: str) -> None:
    apiserver.request("POST", JOBS.format(api_namespace), document())
    complete = {
        "type": "Complete",
        "status": "True",
        "reason": "Completed",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    apiserver.request("PATCH", f"{JOBS.format(api_namespace)}/digits/status", {"status": {"conditions": [complete]}})
    assert (
        "condition met"
        in apiserver.kubectl(
            "wait", "--for=condition=complete", "tj/digits", "-n", api_namespace, f"--timeout={HANG_S:.0f}s"
        ).stdout
    )


def test_what_kubectl_says_to_a_bad_manifest(apiserver: ApiServer, api_namespace: str) -> None:
    written = document({"spec.template.spec.restartPolicy": "Always"})
    done = apiserver.kubectl("apply", "-n", api_namespace, "-f", "-", stdin=yaml.safe_dump(written), check=False)
    assert done.returncode != 0
    assert "spec.template.spec.restartPolicy" in done.stderr and "must be Never or left out" in done.stderr


# --- Somebody else's trainjobs ----------------------------------------------------------------------------------------


@pytest.fixture
def foreign_trainjobs(apiserver: ApiServer) -> Iterator[str]:
    """A CRD of the same kind and plural in another API group; the group's path."""
    other = copy.deepcopy(crd.crd_document())
    version = {"name": "v1", "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    other["metadata"]["name"] = "trainjobs.trainer.example"
    other["spec"] |= {"group": "trainer.example", "versions": [version]}
    other["spec"]["names"] |= {"shortNames": [], "categories": []}
    apiserver.install_crd(other)
    yield "/apis/trainer.example/v1"
    apiserver.request("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainjobs.trainer.example")


def test_trainjobs_of_another_group_stay_apart(
    apiserver: ApiServer, api_namespace: str, foreign_trainjobs: str
) -> None:
    ours, theirs = JOBS.format(api_namespace), f"{foreign_trainjobs}/namespaces/{api_namespace}/trainjobs"
    apiserver.request("POST", ours, document())
    apiserver.request(
        "POST",
        theirs,
        {
            "apiVersion": "trainer.example/v1",
            "kind": "TrainJob",
            "metadata": {"name": "digits"},
            "spec": {"trainer": "x"},
        },
    )
    apiserver.request(
        "POST",
        theirs,
        {"apiVersion": "trainer.example/v1", "kind": "TrainJob", "metadata": {"name": "theirs"}, "spec": {}},
    )
    assert [job["metadata"]["name"] for job in apiserver.request("GET", ours)["items"]] == ["digits"]
    apiserver.request("DELETE", f"{theirs}/digits")
    assert apiserver.request("GET", f"{ours}/digits")["spec"]["workers"] == 2
    listed = apiserver.kubectl("get", "tj", "-n", api_namespace, "-o", "name").stdout.split()
    assert listed == ["trainjob.trainjob.dev/digits"], "the short name is ours"
