"""Lists without managedFields: whatever is in them, nothing else of a document changes. Pods without what nobody looks
at: they look the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fuzz.test_parsers import changed, places
from support.clusters import manifest
from trainjob_api import contract
from trainjob_operator.core.pods.objects import headless_service
from trainjob_operator.k8s.lean import pod_in_short, service_in_short, without_managed_fields
from trainjob_operator.loop.services import are_alike, service_view
from trainjob_operator.manifests import owner_of, pod_view_of, read_job

TEXT = st.text(alphabet='ab"\\[]{},:é\n', max_size=6) | st.just('"managedFields":[') | st.just("managedFields")
LEAVES = TEXT | st.none() | st.booleans() | st.integers()
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=30
)
COMPACT = (",", ":")


def with_none(document: Any) -> Any:
    """As it is to be if every such array went."""
    if isinstance(document, dict):
        return {
            name: [] if name == "managedFields" and isinstance(value, list) else with_none(value)
            for name, value in document.items()
        }
    return [with_none(value) for value in document] if isinstance(document, list) else document


@given(DOCUMENTS, st.sampled_from([None, COMPACT]), st.booleans())
def test_nothing_but_managed_fields_changes(document: Any, separators: Any, ascii_only: bool) -> None:
    content = json.dumps(document, separators=separators, ensure_ascii=ascii_only).encode()
    left = json.loads(without_managed_fields(content))
    assert with_none(left) == with_none(document)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_break_it(before: bytes, after: bytes) -> None:
    without_managed_fields(before + b'{"managedFields":[' + after)


def managed(*keys: str) -> dict[str, Any]:
    fields = {"f:status": {"f:conditions": {key: {".": {}, "f:type": {}} for key in keys}}}
    return {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}


def page_of(*fields: dict[str, Any]) -> dict[str, Any]:
    pod = {"metadata": {"managedFields": list(fields), "name": "digits-0", "uid": "u"}}
    return {"kind": "List", "items": [pod, {"metadata": {"name": "b", "managedFields": []}}, {"spec": {"args": ["["]}}]}


def test_those_of_an_api_server_go_and_their_neighbours_stay() -> None:
    page = page_of(managed('k:{"type":"Ready"}', "v:x]"), managed('k:{"port":1,"protocol":"TCP"}'))
    lean = without_managed_fields(json.dumps(page, separators=COMPACT).encode())
    assert json.loads(lean) == with_none(page) != page


def test_what_counting_does_not_tell_is_left() -> None:
    for odd in ("v:[x", "v:\\"):
        page = page_of(managed(odd))
        content = json.dumps(page, separators=COMPACT).encode()
        assert json.loads(without_managed_fields(content)) == page


CA = "-----BEGIN CERTIFICATE-----"
ENDED = {"exitCode": 137, "signal": 9, "reason": "OOMKilled", "message": "m", "finishedAt": "2026-01-01T00:00:00Z"}
RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [137]}}]
POD: dict[str, Any] = {
    "metadata": {
        "name": "digits-1",
        "namespace": "team",
        "uid": "p",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:00:30Z",
        "deletionGracePeriodSeconds": 30,
        "labels": {contract.LABEL_JOB: "digits", contract.LABEL_SLOT: "1", contract.LABEL_MAKE: "abc"},
        "annotations": {contract.ANNOTATION_AUTHORITY: CA, "other": "x"},
        "ownerReferences": [{"uid": "job", "controller": True}],
        "managedFields": [{"manager": "m"}],
    },
    "spec": {
        "nodeName": "node-1",
        "priority": 5,
        "terminationGracePeriodSeconds": 60,
        "readinessGates": [{"conditionType": "x"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [
            {"name": "sidecar", "image": "i"},
            {
                "name": contract.TRAINER_CONTAINER,
                "image": "i",
                "restartPolicy": "Never",
                "restartPolicyRules": RULES,
                "env": [
                    {"name": "A", "value": "b"},
                    {"name": contract.ENV_COORDINATOR_CA, "value": CA},
                    {"name": contract.ENV_COORDINATOR_CA_FILE, "value": "/ca"},
                ],
            },
        ],
    },
    "status": {
        "phase": "Running",
        "reason": "NodeLost",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:02Z"},
            {"type": "ContainersReady", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
        ],
        "initContainerStatuses": [{"name": "runtime", "state": {"terminated": {"exitCode": 0}}}],
        "containerStatuses": [
            {"name": "sidecar", "state": {"running": {}}},
            {
                "name": contract.TRAINER_CONTAINER,
                "ready": False,
                "restartCount": 2,
                "state": {"running": {}},
                "lastState": {"terminated": ENDED},
            },
        ],
    },
}
STATES: list[dict[str, Any]] = [
    {"running": {}},
    {"terminated": ENDED},
    {"terminated": {**ENDED, "exitCode": 0}},
    {"waiting": {"reason": "CrashLoopBackOff"}},
    {"waiting": {"reason": "ImagePullBackOff", "message": "m"}},
]


def variants() -> Iterator[dict[str, Any]]:
    """The pod in all states of its trainer, whole and with each of its parts left out."""
    for state in STATES:
        pod = copy.deepcopy(POD)
        pod["status"]["containerStatuses"][1]["state"] = state
        yield pod
        for path in places(pod):
            if path not in (("metadata",), ("metadata", "name"), ("metadata", "uid")):
                yield changed(pod, path, None, drop=True)


def test_a_pod_in_short_looks_as_the_whole_one() -> None:
    count = 0
    for pod in variants():
        short = pod_in_short(pod)
        assert pod_view_of(short, "digits", "job") == pod_view_of(pod, "digits", "job"), pod
        assert owner_of(short) == owner_of(pod)
        count += 1
    assert count > 300


def test_a_pod_in_short_is_small_and_the_whole_one_stays_as_it_was() -> None:
    before = copy.deepcopy(POD)
    short = pod_in_short(POD)
    assert before == POD
    assert "managedFields" not in short["metadata"] and "other" not in short["metadata"]["annotations"]
    assert short["spec"]["containers"][0] == {"name": "sidecar"} and "volumes" not in short["spec"]


def test_a_service_in_short_looks_as_the_whole_one() -> None:
    document = manifest()
    job = read_job({**document, "metadata": {**document["metadata"], "uid": "job", "resourceVersion": "1"}})
    service = headless_service(job)
    service["metadata"] |= {"uid": "u", "resourceVersion": "5", "managedFields": [{"manager": "m"}]}
    service["spec"] |= {"ports": [{"port": 80}], "type": "ClusterIP", "ipFamilies": ["IPv4"]}
    seen = set()
    for path in [(), *places(service)]:
        if path in (("metadata",), ("metadata", "name"), ("metadata", "uid")):
            continue
        other = changed(service, path, None, drop=True) if path else service
        short = service_in_short(other)
        assert service_view(short, job) == service_view(other, job), other
        assert are_alike(short, service_in_short(service)) == are_alike(other, service), other
        assert "managedFields" not in short["metadata"] and "ipFamilies" not in short["spec"]
        seen.add((service_view(short, job), are_alike(short, service_in_short(service))))
    assert len(seen) >= 4
