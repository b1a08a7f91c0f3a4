"""TrainJob documents for tests of the API: a small valid one, changed by dotted paths; and the cases that the CRD's
rules decide.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

REMOVED = object()
"""As a value in `document`: take the field away."""

Document = dict[str, Any]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats()
    | st.sampled_from(["", "auto", "none", "/x", "2", "Disabled", "20Gi", "trainer", "\ud800"])
)


def json_values(keys: list[str], leaves: int = 12) -> st.SearchStrategy[Any]:
    """Any JSON value (and what only YAML can hold: NaN, broken text) whose maps have keys from this list."""
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=4),
        max_leaves=leaves,
    )


def document(changes: dict[str, Any] | None = None) -> Document:
    """A valid TrainJob, with `{"spec.checkpoint.keep": 3, "spec.template.spec.containers.0.name": "x"}` put in."""
    doc: Document = {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": 2,
            "template": {
                "spec": {"containers": [{"name": "trainer", "image": "torch", "command": ["python", "train.py"]}]}
            },
        },
    }
    for path, value in (changes or {}).items():
        _put(doc, path.split("."), value)
    return doc


def _put(doc: Any, path: list[str], value: Any) -> None:
    for step in path[:-1]:
        doc = doc[int(step)] if isinstance(doc, list) else doc.setdefault(step, {})
    last: Any = int(path[-1]) if isinstance(doc, list) else path[-1]
    if value is REMOVED:
        del doc[last]
    else:
        doc[last] = copy.deepcopy(value)


@dataclass(frozen=True)
class RuleCase:
    """An object that one of the CRD's rules decides: `refused_at` is the field that the message is about, None:
    accepted.
    """

    name: str
    changes: dict[str, Any]
    refused_at: str | None
    old: dict[str, Any] | None = None
    """Changes that make the stored object; None: the object is new."""


_TRAINER = "spec.template.spec.containers.0"
_S3 = {"endpointURL": "https://minio.storage:9000", "region": "eu-central-1", "credentialsSecret": "s3-keys"}
_ELASTIC = {"minWorkers": 2, "maxWorkers": 8}
_PLAIN = {"spec.runtime.agent": "Disabled"}
_TWO = [{"name": "sidecar", "image": "x", "command": ["run"]}, {"name": "trainer", "image": "torch"}]

_STORED = {"spec.checkpoint.storage": "/ckpt"}
_BUCKET = {"spec.checkpoint.storage": "s3://bucket/jobs"}
RULE_CASES = (
    RuleCase("smallest", {}, None),
    RuleCase("longest name", {"metadata.name": "a" * 52}, None),
    RuleCase("name too long", {"metadata.name": "a" * 53}, "metadata.name"),
    RuleCase("name with a dot", {"metadata.name": "a.b"}, "metadata.name"),
    RuleCase("name begins with a digit", {"metadata.name": "1a"}, "metadata.name"),
    RuleCase("no command", {f"{_TRAINER}.command": REMOVED}, "spec.template.spec.containers[0].command"),
    RuleCase("empty command", {f"{_TRAINER}.command": []}, "spec.template.spec.containers[0].command"),
    RuleCase(
        "command on the sidecar only",
        {"spec.template.spec.containers": _TWO},
        "spec.template.spec.containers[1].command",
    ),
    RuleCase(
        "sidecar without a command",
        {"spec.template.spec.containers": [{**_TWO[1], "command": ["python", "t.py"]}, {"name": "sidecar"}]},
        None,
    ),
    RuleCase("no command without the agent", {f"{_TRAINER}.command": REMOVED, **_PLAIN}, None),
    RuleCase("processes without the agent", {"spec.processesPerWorker": 2, **_PLAIN}, "spec.processesPerWorker"),
    RuleCase("one process without the agent", {"spec.processesPerWorker": 1, **_PLAIN}, None),
    RuleCase("auto without the agent", {"spec.processesPerWorker": "auto", **_PLAIN}, None),
    RuleCase("processes", {"spec.processesPerWorker": 8}, None),
    RuleCase("no processes", {"spec.processesPerWorker": 0}, "spec.processesPerWorker"),
    RuleCase("processes in words", {"spec.processesPerWorker": "many"}, "spec.processesPerWorker"),
    RuleCase("hang", {"spec.hang": {"afterSeconds": 600, "action": "Restart"}}, None),
    RuleCase("hang, learned", {"spec.hang.afterSeconds": "auto"}, None),
    RuleCase("hang at once", {"spec.hang.afterSeconds": 0}, "spec.hang.afterSeconds"),
    RuleCase("hang in words", {"spec.hang.afterSeconds": "soon"}, "spec.hang.afterSeconds"),
    RuleCase("hang without the agent", {"spec.hang.action": "Restart", **_PLAIN}, "spec.hang.action"),
    RuleCase("stragglers", {"spec.hang": {"replaceStragglers": True}}, None),
    RuleCase(
        "stragglers without the agent", {"spec.hang.replaceStragglers": True, **_PLAIN}, "spec.hang.replaceStragglers"
    ),
    RuleCase(
        "stragglers, nobody looks",
        {"spec.hang": {"action": "Off", "replaceStragglers": True}},
        "spec.hang.replaceStragglers",
    ),
    RuleCase("hang, told, without the agent", {"spec.hang.action": "Report", **_PLAIN}, None),
    RuleCase("spares", {"spec.runtime.spareWorkers": 2}, None),
    RuleCase("spares without the agent", {"spec.runtime.spareWorkers": 1, **_PLAIN}, "spec.runtime.spareWorkers"),
    RuleCase("no spares without the agent", {"spec.runtime.spareWorkers": 0, **_PLAIN}, None),
    RuleCase("tracking", {"spec.tracking": ["csv", "mlflow=http://m:5000"], **_STORED}, None),
    RuleCase("tracking in a bucket", {"spec.tracking": ["csv=/logs", "wandb"], **_BUCKET}, None),
    RuleCase("tracking without storage", {"spec.tracking": ["mlflow"]}, "spec.tracking"),
    RuleCase("no tracking without storage", {"spec.tracking": []}, None),
    RuleCase("tracking without the agent", {"spec.tracking": ["csv"], **_STORED, **_PLAIN}, "spec.tracking"),
    RuleCase("files in a bucket", {"spec.tracking": ["wandb", "tensorboard"], **_BUCKET}, "spec.tracking"),
    RuleCase("a table at a URI", {"spec.tracking": ["wandb", "csv=s3://logs/job"], **_STORED}, "spec.tracking"),
    RuleCase("events at a URI", {"spec.tracking": ["tensorboard=file:///logs"], **_BUCKET}, "spec.tracking"),
    RuleCase("a table in somebody's home", {"spec.tracking": ["csv=~/logs"], **_STORED}, "spec.tracking"),
    RuleCase("folders of any name", {"spec.tracking": ["csv=/a:b/~c", "tensorboard=/logs"], **_STORED}, None),
    RuleCase("a table wherever rank 0 runs", {"spec.tracking": ["csv=logs/job"], **_STORED}, "spec.tracking"),
    RuleCase(
        "events wherever rank 0 runs", {"spec.tracking": ["wandb", "tensorboard=./x"], **_BUCKET}, "spec.tracking"
    ),
    RuleCase("runs wherever rank 0 runs", {"spec.tracking": ["mlflow=./mlruns"], **_STORED}, "spec.tracking"),
    RuleCase("runs in a folder", {"spec.tracking": ["mlflow=/logs", "wandb=~me.x"], **_STORED}, None),
    RuleCase("elastic", {"spec.workers": 4, "spec.elastic": {**_ELASTIC, "allowedSizes": [2, 4]}}, None),
    RuleCase("elastic without the agent", {"spec.workers": 4, "spec.elastic": _ELASTIC, **_PLAIN}, "spec.elastic"),
    RuleCase("too few workers", {"spec.workers": 1, "spec.elastic": _ELASTIC}, "spec.workers"),
    RuleCase("too many workers", {"spec.workers": 9, "spec.elastic": _ELASTIC}, "spec.workers"),
    RuleCase("elastic and no wish", {"spec.workers": REMOVED, "spec.elastic": _ELASTIC}, "spec.workers"),
    RuleCase(
        "a wish that is not allowed",
        {"spec.workers": 3, "spec.elastic": {**_ELASTIC, "allowedSizes": [2, 4]}},
        "spec.workers",
    ),
    RuleCase(
        "least above most",
        {"spec.workers": 4, "spec.elastic": {"minWorkers": 5, "maxWorkers": 4}},
        "spec.elastic.minWorkers",
    ),
    RuleCase(
        "a size beyond the most",
        {"spec.workers": 4, "spec.elastic": {**_ELASTIC, "allowedSizes": [4, 16]}},
        "spec.elastic.allowedSizes[1]",
    ),
    RuleCase("restartPolicy Never", {"spec.template.spec.restartPolicy": "Never"}, None),
    RuleCase(
        "restartPolicy Always", {"spec.template.spec.restartPolicy": "Always"}, "spec.template.spec.restartPolicy"
    ),
    RuleCase("storage path", {"spec.checkpoint.storage": "/checkpoints"}, None),
    RuleCase("storage relative", {"spec.checkpoint.storage": "checkpoints"}, "spec.checkpoint.storage"),
    RuleCase("storage s3", {"spec.checkpoint.storage": "s3://bucket/x"}, None),
    RuleCase("storage s3 without a bucket", {"spec.checkpoint.storage": "s3://b/x"}, "spec.checkpoint.storage"),
    RuleCase("storage elsewhere", {"spec.checkpoint.storage": "gs://bucket/x"}, "spec.checkpoint.storage"),
    RuleCase("s3", {"spec.checkpoint": {"storage": "s3://bucket/x", "s3": _S3}}, None),
    RuleCase(
        "s3 for resumeFrom", {"spec.checkpoint": {"resumeFrom": "s3://bucket/x/checkpoints/1-1-1", "s3": _S3}}, None
    ),
    RuleCase("s3 for a path", {"spec.checkpoint": {"storage": "/checkpoints", "s3": _S3}}, "spec.checkpoint.s3"),
    RuleCase(
        "s3 endpoint",
        {"spec.checkpoint": {"storage": "s3://bucket", "s3": {"endpointURL": "minio:9000"}}},
        "spec.checkpoint.s3.endpointURL",
    ),
    RuleCase(
        "s3 region",
        {"spec.checkpoint": {"storage": "s3://bucket", "s3": {"region": "eu west"}}},
        "spec.checkpoint.s3.region",
    ),
    RuleCase(
        "s3 secret",
        {"spec.checkpoint": {"storage": "s3://bucket", "s3": {"credentialsSecret": "A_B"}}},
        "spec.checkpoint.s3.credentialsSecret",
    ),
    RuleCase("s3 authority", {"spec.checkpoint": {"storage": "s3://bucket", "s3": {"caConfigMap": "store-ca"}}}, None),
    RuleCase(
        "s3 authority name",
        {"spec.checkpoint": {"storage": "s3://bucket", "s3": {"caConfigMap": "A_B"}}},
        "spec.checkpoint.s3.caConfigMap",
    ),
    RuleCase("resumeFrom none", {"spec.checkpoint.resumeFrom": "none"}, None),
    RuleCase("resumeFrom path", {"spec.checkpoint.resumeFrom": "/checkpoints/a/b/checkpoints/1-1-1"}, None),
    RuleCase("resumeFrom Auto", {"spec.checkpoint.resumeFrom": "Auto"}, "spec.checkpoint.resumeFrom"),
    RuleCase("sizeLimit", {"spec.checkpoint.staging.sizeLimit": "20Gi"}, None),
    RuleCase("sizeLimit in words", {"spec.checkpoint.staging.sizeLimit": "20GB"}, "spec.checkpoint.staging.sizeLimit"),
    RuleCase("sizeLimit zero", {"spec.checkpoint.staging.sizeLimit": "0"}, "spec.checkpoint.staging.sizeLimit"),
    RuleCase("managedBy given", {"spec.managedBy": "kueue.x-k8s.io/multikueue"}, None),
    RuleCase("managedBy taken on", {"spec.managedBy": "a.b/c"}, "spec.managedBy", old={}),
    RuleCase("managedBy changed", {"spec.managedBy": "a.b/d"}, "spec.managedBy", old={"spec.managedBy": "a.b/c"}),
    RuleCase("managedBy kept", {"spec.managedBy": "a.b/c", "spec.workers": 3}, None, old={"spec.managedBy": "a.b/c"}),
    RuleCase("template changed", {f"{_TRAINER}.image": "torch:2"}, "spec.template", old={}),
    RuleCase("template gains a field", {"spec.template.spec.nodeSelector": {"gpu": "a"}}, "spec.template", old={}),
    RuleCase(
        "template changed deep",
        {f"{_TRAINER}.env": [{"name": "A", "value": "2"}]},
        "spec.template",
        old={f"{_TRAINER}.env": [{"name": "A", "value": "1"}]},
    ),
    RuleCase("template changed while suspended", {f"{_TRAINER}.image": "torch:2"}, None, old={"spec.suspend": True}),
    RuleCase("template changed and suspended", {f"{_TRAINER}.image": "torch:2", "spec.suspend": True}, None, old={}),
    RuleCase(
        "template changed, suspended twice",
        {f"{_TRAINER}.image": "torch:2", "spec.suspend": True},
        None,
        old={"spec.suspend": True},
    ),
    RuleCase("workers changed", {"spec.workers": 5}, None, old={}),
)
