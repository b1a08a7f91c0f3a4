"""Manifests as people get them wrong, each with the words that must come back: from the API server, or in the job's
condition.

The API server's own schema errors name field and value; the rules (CEL) and the operator say in addition what would be
right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.trainjobs import REMOVED

_TRAINER = "spec.template.spec.containers.0"


@dataclass(frozen=True)
class Bad:
    """A document with these changes is refused with all of these words."""

    name: str
    changes: dict[str, Any]
    words: tuple[str, ...]


def _bad(name: str, changes: dict[str, Any], *words: str) -> Bad:
    return Bad(name, changes, words)


def _trainer(field: str, value: Any) -> dict[str, Any]:
    return {f"{_TRAINER}.{field}": value}


def _rules(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"spec.failurePolicy.rules": list(rules)}


BY_SERVER = (
    # Names and kinds.
    _bad(
        "name too long",
        {"metadata.name": "a" * 53},
        "metadata.name is too long: at most 52 characters",
        "choose a shorter name",
    ),
    _bad(
        "name with a dot", {"metadata.name": "digits.v2"}, "metadata.name must be lower-case letters, digits and dashes"
    ),
    _bad("name begins with a digit", {"metadata.name": "2nd"}, "begin with a letter"),
    _bad("name in capitals", {"metadata.name": "Digits"}, "lower case alphanumeric"),
    _bad("name missing", {"metadata.name": REMOVED}, "name or generateName is required"),
    _bad(
        "label is no text",
        {"metadata.labels": {"team": 7}},
        "cannot unmarshal number into Go struct field ObjectMeta.labels of type string",
    ),
    # What is missing.
    _bad("no spec", {"spec": REMOVED}, "spec", "Required value"),
    _bad("no template", {"spec.template": REMOVED}, "spec.template", "Required value"),
    _bad("no pod spec", {"spec.template": {}}, "spec.template.spec", "Required value"),
    _bad(
        "no containers", {"spec.template.spec.containers": REMOVED}, "spec.template.spec.containers", "Required value"
    ),
    _bad(
        "empty containers", {"spec.template.spec.containers": []}, "spec.template.spec.containers", "at least 1 items"
    ),
    _bad(
        "no command",
        _trainer("command", REMOVED),
        "needs a command, for example [python, train.py]",
        "runtime.agent to Disabled",
    ),
    _bad("empty command", _trainer("command", []), "needs a command, for example [python, train.py]"),
    _bad(
        "command at the sidecar alone",
        {
            "spec.template.spec.containers": [
                {"name": "logs", "image": "x", "command": ["run"]},
                {"name": "trainer", "image": "x"},
            ]
        },
        "the container that trains needs a command",
    ),
    # Numbers.
    _bad("workers in quotes", {"spec.workers": "2"}, "spec.workers", "must be of type integer"),
    _bad("no workers", {"spec.workers": 0}, "spec.workers", "greater than or equal to 1"),
    _bad("negative workers", {"spec.workers": -1}, "spec.workers", "greater than or equal to 1"),
    _bad("half a worker", {"spec.workers": 1.5}, "spec.workers", "must be of type integer"),
    _bad("too many workers", {"spec.workers": 20_000}, "spec.workers", "less than or equal to 10000"),
    _bad(
        "no processes",
        {"spec.processesPerWorker": 0},
        "spec.processesPerWorker",
        "must be a whole number of at least 1, or auto",
    ),
    _bad(
        "processes in words",
        {"spec.processesPerWorker": "many"},
        "spec.processesPerWorker",
        "must be a whole number of at least 1, or auto",
    ),
    _bad(
        "processes without the agent",
        {"spec.processesPerWorker": 2, "spec.runtime.agent": "Disabled"},
        "spec.processesPerWorker",
        "must be 1 or left out with runtime.agent Disabled",
    ),
    _bad(
        "spares without the agent",
        {"spec.runtime": {"agent": "Disabled", "spareWorkers": 1}},
        "spec.runtime.spareWorkers",
        "must be 0 or left out with runtime.agent Disabled",
    ),
    _bad(
        "fewer spares than none",
        {"spec.runtime.spareWorkers": -1},
        "spec.runtime.spareWorkers",
        "greater than or equal to 0",
    ),
    _bad("keeps no checkpoint", {"spec.checkpoint.keep": 0}, "spec.checkpoint.keep", "greater than or equal to 1"),
    _bad(
        "negative budget",
        {"spec.failurePolicy.maxFailures": -2},
        "spec.failurePolicy.maxFailures",
        "greater than or equal to -1",
    ),
    _bad("port too low", {"spec.rendezvous.port": 80}, "spec.rendezvous.port", "greater than or equal to 1024"),
    _bad("port too high", {"spec.rendezvous.port": 65535}, "spec.rendezvous.port", "less than or equal to 65471"),
    _bad(
        "no time for collectives",
        {"spec.rendezvous.timeoutSeconds": 0},
        "spec.rendezvous.timeoutSeconds",
        "greater than or equal to 1",
    ),
    _bad(
        "deadline of nothing",
        {"spec.activeDeadlineSeconds": 0},
        "spec.activeDeadlineSeconds",
        "greater than or equal to 1",
    ),
    _bad(
        "deadline with a unit",
        {"spec.startupDeadlineSeconds": "5m"},
        "spec.startupDeadlineSeconds",
        "must be of type integer",
    ),
    _bad(
        "TTL in the past",
        {"spec.ttlSecondsAfterFinished": -1},
        "spec.ttlSecondsAfterFinished",
        "greater than or equal to 0",
    ),
    # Words.
    _bad("suspend in words", {"spec.suspend": "yes"}, "spec.suspend", "must be of type boolean"),
    _bad("unknown backend", {"spec.rendezvous.backend": "mpi"}, "spec.rendezvous.backend", '"auto", "gloo", "nccl"'),
    _bad("unknown agent mode", {"spec.runtime.agent": "off"}, "spec.runtime.agent", '"auto", "Disabled"'),
    _bad("unknown clean-up", {"spec.podCleanup": "Always"}, "spec.podCleanup", '"Running", "All", "None"'),
    _bad(
        "unknown score order", {"spec.checkpoint.scoreOrder": "maximum"}, "spec.checkpoint.scoreOrder", '"max", "min"'
    ),
    _bad("unknown medium", {"spec.checkpoint.staging.medium": "ram"}, "spec.checkpoint.staging.medium", '"Memory"'),
    _bad(
        "restart by the kubelet",
        {"spec.template.spec.restartPolicy": "Always"},
        "spec.template.spec.restartPolicy",
        "must be Never or left out",
    ),
    # Places.
    _bad(
        "storage is an URI",
        {"spec.checkpoint.storage": "gs://bucket/x"},
        "spec.checkpoint.storage",
        "absolute path on a volume that all workers mount",
    ),
    _bad(
        "storage is relative",
        {"spec.checkpoint.storage": "checkpoints"},
        "spec.checkpoint.storage",
        "for example /checkpoints",
    ),
    _bad(
        "resume from a name",
        {"spec.checkpoint.resumeFrom": "latest"},
        "spec.checkpoint.resumeFrom",
        "must be auto, none, or the absolute path",
    ),
    _bad(
        "size with a wrong unit",
        {"spec.checkpoint.staging.sizeLimit": "20GB"},
        "spec.checkpoint.staging.sizeLimit",
        "must be a size such as 20Gi",
    ),
    _bad(
        "size of nothing",
        {"spec.checkpoint.staging.sizeLimit": "0"},
        "spec.checkpoint.staging.sizeLimit",
        "must be a size such as 20Gi",
    ),
    # Failure rules.
    _bad(
        "rule for success",
        _rules({"exitCodes": [0], "action": "Fail"}),
        "spec.failurePolicy.rules[0].exitCodes[0]",
        "greater than or equal to 1",
    ),
    _bad(
        "rule for no code",
        _rules({"exitCodes": [], "action": "Fail"}),
        "spec.failurePolicy.rules[0].exitCodes",
        "at least 1 items",
    ),
    _bad("rule without an action", _rules({"exitCodes": [1]}), "spec.failurePolicy.rules[0].action", "Required value"),
    _bad(
        "rule with an unknown action",
        _rules({"exitCodes": [1], "action": "Retry"}),
        "spec.failurePolicy.rules[0].action",
        '"Fail", "Restart", "Ignore"',
    ),
    _bad(
        "code twice in a rule",
        _rules({"exitCodes": [1, 1], "action": "Fail"}),
        "spec.failurePolicy.rules[0].exitCodes[1]",
        "Duplicate value",
    ),
    # Fields that are not there; strict, as kubectl asks.
    _bad("misspelt field", {"spec.wrokers": 2}, 'unknown field "spec.wrokers"'),
    _bad("field of another project", {"spec.pytorchReplicaSpecs": {}}, 'unknown field "spec.pytorchReplicaSpecs"'),
    _bad("field at the wrong place", {"spec.maxFailures": 3}, 'unknown field "spec.maxFailures"'),
    _bad("commands in snake case", {"spec.failure_policy": {}}, 'unknown field "spec.failure_policy"'),
)
"""The API server refuses these."""

BY_CONDITION = (
    _bad(
        "name of a variable that is ours",
        _trainer("env", [{"name": "RANK", "value": "0"}]),
        "env[0].name",
        "TrainJob sets this variable itself",
    ),
    _bad("our prefix", _trainer("env", [{"name": "TRAINJOB_JOB", "value": "x"}]), "env[0].name", "must be left out"),
    _bad("number as a variable", _trainer("env", [{"name": "A", "value": 1}]), "env[0].value", "put it in quotes"),
    _bad("variables as a map", _trainer("env", {"A": "1"}), "env", "must be a list of `{name: ..., value: ...}`"),
    _bad("number as an argument", _trainer("args", ["--lr", 0.1]), "args[1]", "put it in quotes"),
    _bad(
        "half a GPU",
        _trainer("resources", {"limits": {"nvidia.com/gpu": 0.5}}),
        "nvidia.com/gpu",
        "must be a whole number",
    ),
    _bad("hostname", {"spec.template.spec.hostname": "trainer"}, "spec.template.spec.hostname", "must be left out"),
    _bad("subdomain", {"spec.template.spec.subdomain": "trainers"}, "spec.template.spec.subdomain", "must be left out"),
    _bad(
        "our label",
        {"spec.template.metadata": {"labels": {"trainjob.dev/job": "x"}}},
        "labels[trainjob.dev/job]",
        "the operator's own",
    ),
    _bad(
        "annotation is no text",
        {"spec.template.metadata": {"annotations": {"a": True}}},
        "annotations[a]",
        "put it in quotes",
    ),
    _bad(
        "containers one level too high",
        {"spec.template.containers": []},
        "spec.template.containers",
        "belong into spec.template.spec",
    ),
    _bad(
        "two containers of one name",
        {"spec.template.spec.initContainers": [{"name": "trainer", "image": "x"}]},
        "is the name of",
        "its own name",
    ),
    _bad(
        "our volume",
        {"spec.template.spec.volumes": [{"name": "trainjob-work", "emptyDir": {}}]},
        "volumes[0].name",
        "choose another name",
    ),
    _bad(
        "our folder",
        _trainer("volumeMounts", [{"name": "x", "mountPath": "/trainjob/lib"}]),
        "volumeMounts[0].mountPath",
        "must be outside /trainjob",
    ),
    _bad(
        "our init container",
        {"spec.template.spec.initContainers": [{"name": "trainjob-runtime", "image": "x"}]},
        "choose another name",
    ),
    _bad(
        "several processes of torchrun",
        {"spec.processesPerWorker": 2, f"{_TRAINER}.command": ["torchrun", "t.py"]},
        "spec.processesPerWorker",
        "`torchrun` starts the processes of a pod itself",
    ),
    _bad("storage is the root", {"spec.checkpoint.storage": "/"}, "spec.checkpoint.storage", "a folder below /"),
    _bad("storage climbs", {"spec.checkpoint.storage": "/a/../b"}, "spec.checkpoint.storage", "without `..`"),
    _bad(
        "score by nothing",
        {"spec.checkpoint.scoreAttribute": "val."},
        "spec.checkpoint.scoreAttribute",
        "name of a reported metric",
    ),
    _bad(
        "code in two rules",
        _rules({"exitCodes": [1], "action": "Fail"}, {"exitCodes": [1], "action": "Ignore"}),
        "spec.failurePolicy.rules[1].exitCodes[0]",
        "stands in rules[0] (Fail) already",
    ),
    # What only the API server knows about pods: its words, when the operator creates them.
    _bad(
        "volume that is not there",
        _trainer("volumeMounts", [{"name": "data", "mountPath": "/data"}]),
        "volumeMounts[0].name",
        'Not found: "data"',
    ),
    _bad(
        "negative memory",
        _trainer("resources", {"requests": {"memory": "-1Gi"}}),
        "resources.requests[memory]",
        "must be greater than or equal to 0",
    ),
    _bad("no image", _trainer("image", REMOVED), "image", "Required value"),
)
"""The API server takes these, the operator refuses them: no pod is made, and the condition ResourcesCreated says
why.
"""
