"""What `tj submit` says about the pods beside size and storage: where they may run, what they are called, what they get
from Secrets, and what a namespace demands of them; pure.

`submit` puts it over the TrainJob of a script or of a manifest, in which nothing has been checked yet.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainjob.cli.errors import CommandError
from trainjob.launch.handover import carry
from trainjob_api.contract import CLI_USAGE
from trainjob_api.validation import InvalidTrainJob, parse_trainjob

Document = dict[str, Any]

POD_SECURITY = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What a namespace that enforces the `restricted` standard demands."""


class SecretVariable(NamedTuple):
    """A variable of the ranks that holds one key of a Secret."""

    name: str
    secret: str
    key: str


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """What was given on the command line; empty: the template's own stays."""

    labels: Sequence[tuple[str, str]] = ()
    """Of the job and its pods."""
    node_selector: Sequence[tuple[str, str]] = ()
    tolerations: Sequence[Mapping[str, str]] = ()
    secret_variables: Sequence[SecretVariable] = ()
    secrets: Sequence[str] = ()
    """Secrets whose keys all become variables."""
    pull_secrets: Sequence[str] = ()
    service_account: str | None = None
    restricted: bool = False

    def flags(self) -> list[str]:
        """Those that were given."""
        every = {
            "--label": self.labels,
            "--node-selector": self.node_selector,
            "--toleration": self.tolerations,
            "--secret-env": self.secret_variables,
            "--env-from-secret": self.secrets,
            "--pull-secret": self.pull_secrets,
            "--service-account": self.service_account,
            "--restricted": self.restricted,
        }
        return [flag for flag, given in every.items() if given]


def put(document: Document, options: PodOptions) -> Document:
    """A copy of the document with the options in it; one that is not valid anyway is left to validation as it is.
    Raises CommandError: no option is lost in silence.
    """
    found = copy.deepcopy(document)
    try:
        _put(found, options)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        try:
            parse_trainjob(document)
        except InvalidTrainJob:
            return document
        raise CommandError(
            f"{', '.join(options.flags())} cannot be put into spec.template: {error}",
            next_step="put it into the template yourself, and leave the options out",
            code=CLI_USAGE,
        ) from error
    return found


def _put(found: Document, options: PodOptions) -> None:
    template = found["spec"]["template"]
    spec = template["spec"]
    trainer = carry.trainer(found)
    if options.labels:
        for owner in (found, template):
            metadata = owner.get("metadata") or {}
            owner["metadata"] = {**metadata, "labels": {**(metadata.get("labels") or {}), **dict(options.labels)}}
    if options.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **dict(options.node_selector)}
    for toleration in options.tolerations:
        spec["tolerations"] = _with(spec.get("tolerations"), dict(toleration))
    for name in options.pull_secrets:
        spec["imagePullSecrets"] = _with(spec.get("imagePullSecrets"), {"name": name})
    for name in options.secrets:
        trainer["envFrom"] = _with(trainer.get("envFrom"), {"secretRef": {"name": name}})
    for variable in options.secret_variables:
        entry = {
            "name": variable.name,
            "valueFrom": {"secretKeyRef": {"name": variable.secret, "key": variable.key}},
        }
        trainer["env"] = [each for each in trainer.get("env") or () if each.get("name") != variable.name] + [entry]
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.restricted:
        # What the template says itself stays: another user, a group that owns the volume.
        spec["securityContext"] = {**POD_SECURITY, **(spec.get("securityContext") or {})}
        for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
            container["securityContext"] = {**CONTAINER_SECURITY, **(container.get("securityContext") or {})}


def _with(there: Any, entry: Document) -> list[Any]:
    """A list with an entry that is in it once."""
    found = list(there or ())
    return found if entry in found else [*found, entry]


def template_of(documents: Sequence[Any], file: str) -> Document:
    """The pod template that a file holds: a template itself (`metadata`, `spec`), a Pod, or an object with
    `spec.template` (a TrainJob, a Deployment). Raises CommandError.
    """
    found = documents[0] if len(documents) == 1 else None
    spec = found.get("spec") if isinstance(found, dict) else None
    if isinstance(found, dict) and isinstance(spec, dict):
        inner = spec.get("template")
        if isinstance(inner, dict) and isinstance(inner.get("spec"), dict):
            return inner
        if isinstance(spec.get("containers", []), list):
            return {key: found[key] for key in ("metadata", "spec") if key in found}
    raise CommandError(
        f"{file} holds no pod template",
        next_step="give one document with `spec: {tolerations: ..., containers: [{name: trainer}]}`, a Pod, or a "
        "TrainJob, whose spec.template is taken",
        code=CLI_USAGE,
    )
