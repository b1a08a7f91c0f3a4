"""The rules that the API server itself checks (CEL), so that `kubectl apply` refuses with a sentence what cannot work.

Called by `crd.py`. Each rule mirrors a check of `validation.py`; a rule sees one object (and its old version), never
the cluster. Lists and strings that a rule walks through are bounded in the schema, or the API server refuses the CRD
for its cost. Every message says what to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainjob_api import contract, storage_rules


@dataclass(frozen=True)
class Rule:
    """A CEL expression that must hold at `path` of the object, and what is said when it does not."""

    path: tuple[str, ...]
    """Names of the fields down to the node that carries the rule; () is the whole object."""
    expression: str
    message: str
    shown_at: str | None = None
    """Where below the node the API server shows the problem; None: at the node."""

    def entry(self) -> dict[str, Any]:
        """The item of `x-kubernetes-validations`."""
        shown = {"fieldPath": self.shown_at} if self.shown_at else {}
        return {"rule": self.expression, "message": self.message, **shown}


_PLAIN_MODE = "has(self.runtime) && has(self.runtime.agent) && self.runtime.agent == 'Disabled'"
_IS_TRAINER = f"c.name == '{contract.TRAINER_CONTAINER}'"
_HAS_COMMAND = "has(c.command) && size(c.command) > 0"
_CONTAINERS = "self.template.spec.containers"
_TRAINER_HAS_COMMAND = (
    f"({_CONTAINERS}.exists(c, {_IS_TRAINER})"
    f" ? {_CONTAINERS}.exists(c, {_IS_TRAINER} && {_HAS_COMMAND})"
    f" : has({_CONTAINERS}[0].command) && size({_CONTAINERS}[0].command) > 0)"
)
_ONE_PROCESS = (
    "!has(self.processesPerWorker) || (type(self.processesPerWorker) == int ? self.processesPerWorker == "
    "1 : self.processesPerWorker == 'auto')"
)

RULES = (
    Rule(
        (),
        f"size(self.metadata.name) <= {contract.NAME_LIMIT}",
        f"metadata.name is too long: at most {contract.NAME_LIMIT} characters fit, because pods carry it with a "
        "number behind it; choose a shorter name",
    ),
    Rule(
        (),
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be lower-case letters, digits and dashes, begin with a letter and end with a letter or "
        "digit (it becomes a host name)",
    ),
    Rule(
        ("spec",),
        "self.template == oldSelf.template || (has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && "
        "oldSelf.suspend)",
        "template can be changed only while the job is suspended: set suspend to true in the same change, and back "
        "to false to continue",
        ".template",
    ),
    Rule(
        ("spec",),
        "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == "
        "oldSelf.managedBy)",
        "managedBy must stay as it was when the job was created: delete the job and create it anew",
        ".managedBy",
    ),
    Rule(
        ("spec",),
        f"({_PLAIN_MODE}) || {_TRAINER_HAS_COMMAND}",
        "the container that trains needs a command, for example [python, train.py]: the agent runs it, and what the "
        "image would run by itself "
        "is not known here; or set runtime.agent to Disabled to do without the agent",
        ".template.spec.containers",
    ),
    Rule(
        ("spec",),
        f"!({_PLAIN_MODE}) || {_ONE_PROCESS}",
        "processesPerWorker must be 1 or left out with runtime.agent Disabled: without the agent a pod has one "
        "process, which may start more itself",
        ".processesPerWorker",
    ),
    Rule(
        ("spec",),
        f"!has(self.elastic) || !({_PLAIN_MODE})",
        "elastic must be left out with runtime.agent Disabled: without the agent nobody tells when a group of another "
        "size may begin",
        ".elastic",
    ),
    Rule(
        ("spec",),
        f"!({_PLAIN_MODE}) || !has(self.runtime.spareWorkers) || self.runtime.spareWorkers == 0",
        "runtime.spareWorkers must be 0 or left out with runtime.agent Disabled: without the agent a worker cannot "
        "take the place of another, each attempt has new pods",
        ".runtime.spareWorkers",
    ),
    Rule(
        ("spec",),
        f"!has(self.tracking) || size(self.tracking) == 0 || !({_PLAIN_MODE})",
        "tracking must be left out with runtime.agent Disabled: the agent feeds trackers",
        ".tracking",
    ),
    Rule(
        ("spec",),
        "!has(self.tracking) || size(self.tracking) == 0 || (has(self.checkpoint) && has(self.checkpoint.storage))",
        "tracking needs checkpoint.storage, where the job's reports are read",
        ".tracking",
    ),
    Rule(
        ("spec",),
        "!has(self.tracking) || !has(self.checkpoint) || !has(self.checkpoint.storage) || "
        "!self.checkpoint.storage.startsWith('s3://') || !self.tracking.exists(t, t in ['csv', 'tensorboard'])",
        "tracking by csv or tensorboard needs a folder on a volume, such as csv=/logs/job: checkpoints are in a bucket",
        ".tracking",
    ),
    Rule(
        ("spec",),
        f"!has(self.tracking) || !self.tracking.exists(t, t.matches('{contract.TRACKERS_NO_FOLDER}'))",
        "tracking must name folders on a volume, such as csv=/logs/job: absolute paths, and no URIs for csv and "
        "tensorboard",
        ".tracking",
    ),
    Rule(
        ("spec",),
        "!has(self.elastic) || (self.elastic.minWorkers <= self.workers && self.workers <= self.elastic.maxWorkers)",
        "workers must be from elastic.minWorkers to elastic.maxWorkers: it is the wished number of workers, usually "
        "maxWorkers",
        ".workers",
    ),
    Rule(
        ("spec",),
        "!has(self.elastic) || !has(self.elastic.allowedSizes) || size(self.elastic.allowedSizes) == 0 || self.workers "
        "in self.elastic.allowedSizes",
        "workers must be one of elastic.allowedSizes",
        ".workers",
    ),
    Rule(
        ("spec", "elastic"),
        "self.minWorkers <= self.maxWorkers",
        "minWorkers must be at most maxWorkers",
        ".minWorkers",
    ),
    Rule(
        ("spec", "elastic"),
        "!has(self.allowedSizes) || self.allowedSizes.all(n, self.minWorkers <= n && n <= self.maxWorkers)",
        "allowedSizes must be from minWorkers to maxWorkers",
        ".allowedSizes",
    ),
    Rule(
        ("spec", "processesPerWorker"),
        "type(self) == int ? self >= 1 : self == 'auto'",
        "must be a whole number of at least 1, or auto",
    ),
    Rule(
        ("spec", "hang", "afterSeconds"),
        "type(self) == int ? self >= 1 : self == 'auto'",
        "must be a whole number of seconds, at least 1, or auto",
    ),
    Rule(
        ("spec",),
        f"!({_PLAIN_MODE}) || !has(self.hang) || !has(self.hang.action) || self.hang.action != 'Restart'",
        "hang.action must not be Restart with runtime.agent Disabled: without the agent nobody sees that ranks hang",
        ".hang.action",
    ),
    Rule(
        ("spec",),
        f"!({_PLAIN_MODE}) || !has(self.hang) || !has(self.hang.replaceStragglers) || !self.hang.replaceStragglers",
        "hang.replaceStragglers needs the agent: with runtime.agent Disabled nobody sees which ranks are slow",
        ".hang.replaceStragglers",
    ),
    Rule(
        ("spec",),
        "!has(self.hang) || !has(self.hang.replaceStragglers) || !self.hang.replaceStragglers || "
        "!has(self.hang.action) || self.hang.action != 'Off'",
        "hang.replaceStragglers needs hang.action Report or Restart: with Off nobody looks",
        ".hang.replaceStragglers",
    ),
    Rule(
        ("spec", "template", "spec", "restartPolicy"),
        "self == 'Never'",
        "must be Never or left out: the operator and the agent restart what ends, and count it",
    ),
    Rule(
        ("spec", "checkpoint", "storage"),
        f"self.startsWith('/') || self.matches('{storage_rules.S3_URI}')",
        "must be an absolute path on a volume that all workers mount, for example /checkpoints, or "
        "s3://bucket/folder; this version keeps checkpoints on "
        "mounted paths and at s3://, not at another URI",
    ),
    Rule(
        ("spec", "checkpoint", "resumeFrom"),
        f"self == 'auto' || self == 'none' || self.startsWith('/') || self.matches('{storage_rules.S3_URI}')",
        "must be auto, none, or the absolute path of a checkpoint, for example "
        "/checkpoints/team/job/checkpoints/1-2-14, or its s3:// URI",
    ),
    Rule(
        ("spec", "checkpoint"),
        "!has(self.s3) || (has(self.storage) && self.storage.startsWith('s3://')) || (has(self.resumeFrom) && "
        "self.resumeFrom.startsWith('s3://'))",
        "must be left out unless storage or resumeFrom is at s3://bucket/folder",
        ".s3",
    ),
    Rule(
        ("spec", "checkpoint", "s3", "endpointURL"),
        "self.matches('^https?://[^/?#@]+/?$')",
        "must be http:// or https:// with host and port and nothing behind them: https://minio.storage:9000",
    ),
    Rule(
        ("spec", "checkpoint", "s3", "region"),
        f"self.matches('{storage_rules.REGION}')",
        "must be the name of a region, for example eu-central-1",
    ),
    Rule(
        ("spec", "checkpoint", "s3", "credentialsSecret"),
        f"self.matches('{storage_rules.SECRET}')",
        "must be the name of a Secret in the job's namespace",
    ),
    Rule(
        ("spec", "checkpoint", "s3", "caConfigMap"),
        f"self.matches('{storage_rules.SECRET}')",
        "must be the name of a ConfigMap in the job's namespace",
    ),
    Rule(
        ("spec", "checkpoint", "staging", "sizeLimit"),
        "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        "must be a size such as 20Gi or 500M",
    ),
)


def add_rules(schema: dict[str, Any]) -> dict[str, Any]:
    """Put every rule into its node of the object's schema, in place; returns the schema. Raises KeyError for a path
    that is not there.
    """
    for rule in RULES:
        node = schema
        for name in rule.path:
            node = node["properties"][name]
        node.setdefault("x-kubernetes-validations", []).append(rule.entry())
    return schema
