"""Checks of a spec's pod template: what has to be there for us to run it, and what would collide with what we set.

Called by `validation.validate_spec`. The template stays the user's: a field that we neither need nor set is Kubernetes'
own business (`pod_schema` looks for misspelt ones). Total: the template may be any map of JSON values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob_api import contract, defaults
from trainjob_api.problems import ABSENT, Problem
from trainjob_api.v1alpha1 import TrainJobSpec

TEMPLATE = "spec.template"
CONTAINERS = "spec.template.spec.containers"

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

USER_ENV = frozenset(
    {
        contract.ENV_BARRIER_WARN_S,
        contract.ENV_BARRIER_TIMEOUT_S,
        contract.ENV_S3_PATH_STYLE,
        contract.ENV_S3_CHECKSUM,
        contract.ENV_S3_RETRY_S,
        contract.ENV_S3_TIMEOUT_S,
        contract.ENV_CODE,
        contract.ENV_VERBOSE,
    }
)
"""TRAINJOB_ names that are there for users to set."""

RESERVED_ENV = frozenset(
    {
        *contract.RANK_PLACE,
        "PET_NNODES",
        "PET_NODE_RANK",
        "PET_MASTER_ADDR",
        "PET_MASTER_PORT",
        "PET_RDZV_ENDPOINT",
    }
)
"""Names whose value differs from worker to worker or attempt to attempt, so that only we can set them."""

RESERVED_PREFIX = "TRAINJOB_"
LABEL_PREFIX = f"{contract.GROUP}/"

SET_BY_US = {
    "hostname": "the operator sets it, so that workers find each other by name",
    "subdomain": "the operator sets it, so that workers find each other by name",
}

VOLUMES = (
    contract.WORK_VOLUME,
    contract.RUNTIME_VOLUME,
    contract.TOKEN_VOLUME,
    contract.SHM_VOLUME,
    contract.S3_CA_VOLUME,
)
"""Names of volumes that pods with an agent get."""
FOLDERS = (contract.RUNTIME_DIR, contract.WORK_DIR, contract.TOKEN_DIR)
"""Where the trainer of such a pod sees them (beside /dev/shm, which the template may mount itself)."""


def template_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    """Everything that is wrong with the template of a spec."""
    yield from _outline(spec.template)
    pod_spec = spec.template.get("spec")
    if not isinstance(pod_spec, Mapping):
        return
    policy = pod_spec.get("restartPolicy")
    if policy not in (None, "Never"):
        yield Problem(
            f"{TEMPLATE}.spec.restartPolicy",
            policy,
            "must be Never or left out: the operator and the agent restart what ends, and count it",
        )
    for name, why in SET_BY_US.items():
        if pod_spec.get(name) is not None:
            yield Problem(f"{TEMPLATE}.spec.{name}", pod_spec[name], f"must be left out: {why}")
    containers = list(_containers(pod_spec))
    yield from _names(containers)
    if defaults.uses_agent(spec):
        yield from _collisions(pod_spec, containers)
    if any(field.startswith(f"{CONTAINERS}[") for field, _ in containers):
        at, trainer = defaults.trainer_container(spec)
        yield from _trainer(spec, f"{CONTAINERS}[{at}]", trainer)


def _outline(template: Mapping[str, Any]) -> Iterator[Problem]:
    """The template's own fields, its labels, and that there is a list of containers."""
    for name in template:
        if name not in ("metadata", "spec"):
            known = (
                "a pod template has metadata and spec; a pod's fields, such as containers, belong into "
                "spec.template.spec"
            )
            yield Problem(f"{TEMPLATE}.{name}", template[name], f"unknown field; {known}")
    yield from _labels(template.get("metadata"))
    pod_spec = template.get("spec")
    if not isinstance(pod_spec, Mapping):
        value = ABSENT if pod_spec is None else pod_spec
        yield Problem(
            f"{TEMPLATE}.spec",
            value,
            "must be a map with the containers: `spec: {containers: [{name: trainer, image: ..., command: [python, "
            "train.py]}]}`",
        )
        return
    for listed in ("containers", "initContainers"):
        value = pod_spec.get(listed)
        if listed == "containers" and value in (None, []):
            yield Problem(
                CONTAINERS,
                ABSENT if value is None else value,
                "must list at least one container; the one named trainer, else the first, trains",
            )
        elif value is not None and not isinstance(value, list):
            yield Problem(f"{TEMPLATE}.spec.{listed}", value, "must be a list (`- name: ...` lines)")
        for at, container in enumerate(value if isinstance(value, list) else []):
            if not isinstance(container, Mapping):
                yield Problem(
                    f"{TEMPLATE}.spec.{listed}[{at}]", container, "must be a map (`name: ...`, `image: ...` lines)"
                )


def _labels(metadata: Any) -> Iterator[Problem]:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        yield Problem(f"{TEMPLATE}.metadata", metadata, "must be a map, for example with labels and annotations")
        return
    for kind in ("labels", "annotations"):
        listed = metadata.get(kind)
        if listed is not None and not isinstance(listed, Mapping):
            yield Problem(f"{TEMPLATE}.metadata.{kind}", listed, "must be a map (`key: value` lines)")
            continue
        for key, value in (listed or {}).items():
            field = f"{TEMPLATE}.metadata.{kind}[{key}]"
            if not isinstance(value, str):
                yield Problem(field, value, "must be text; put it in quotes")
            elif kind == "labels" and key.startswith(LABEL_PREFIX):
                yield Problem(
                    field, value, f"must be left out: labels that begin with {LABEL_PREFIX} are the operator's own"
                )


def _containers(pod_spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(field, container) of all containers that are maps."""
    for listed in ("initContainers", "containers"):
        value = pod_spec.get(listed)
        for at, container in enumerate(value if isinstance(value, list) else []):
            if isinstance(container, Mapping):
                yield f"{TEMPLATE}.spec.{listed}[{at}]", container


def _names(containers: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Problem]:
    """Container names: there, DNS labels, different from each other."""
    first: dict[str, str] = {}
    for field, container in containers:
        name = container.get("name")
        if name is None:
            yield Problem(f"{field}.name", ABSENT, f"is required, for example {contract.TRAINER_CONTAINER}")
        elif not isinstance(name, str) or DNS_LABEL.fullmatch(name) is None:
            yield Problem(
                f"{field}.name",
                name,
                "must be lower-case letters, digits and dashes, at most 63 characters, with a letter or digit at "
                "both ends",
            )
        elif name in first:
            yield Problem(
                f"{field}.name",
                name,
                f"is the name of {first[name]} already; give each container of a pod its own name",
            )
        else:
            first[name] = field


def _collisions(pod_spec: Mapping[str, Any], containers: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Problem]:
    """Names that pods with an agent have already."""
    for field, container in containers:
        if container.get("name") == contract.RUNTIME_CONTAINER:
            yield Problem(
                f"{field}.name",
                contract.RUNTIME_CONTAINER,
                "is the name of the init container that brings the agent; choose another name",
            )
    volumes = pod_spec.get("volumes")
    for at, volume in enumerate(volumes if isinstance(volumes, list) else []):
        name = volume.get("name") if isinstance(volume, Mapping) else None
        if name in VOLUMES:
            yield Problem(
                f"{TEMPLATE}.spec.volumes[{at}].name",
                name,
                f"is the name of a volume that the operator adds ({', '.join(VOLUMES)}); choose another name",
            )


def _mounts(field: str, value: Any) -> Iterator[Problem]:
    """Mounts of the trainer at, or below, the folders that belong to the agent."""
    for at, mount in enumerate(value if isinstance(value, list) else []):
        path = mount.get("mountPath") if isinstance(mount, Mapping) else None
        taken = next((folder for folder in FOLDERS if f"{path}/".startswith(f"{folder}/")), None)
        if taken is not None:
            yield Problem(
                f"{field}[{at}].mountPath",
                path,
                f"must be outside {taken}, where the operator mounts a volume for the agent",
            )


def _trainer(spec: TrainJobSpec, field: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    """The container that trains: its command, environment and GPUs."""
    for words in ("command", "args"):
        yield from _words(f"{field}.{words}", container.get(words))
    if defaults.uses_agent(spec) and container.get("command") in (None, []):
        why = "the agent runs it, and what the image would run by itself is not known here"
        yield Problem(
            f"{field}.command",
            ABSENT,
            f"is required, for example [python, train.py]: {why}; or set spec.runtime.agent: Disabled to do without "
            "the agent",
        )
    if defaults.uses_agent(spec):
        yield from _mounts(f"{field}.volumeMounts", container.get("volumeMounts"))
    yield from _environment(f"{field}.env", container.get("env"))
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    for name in defaults.GPU_RESOURCES:
        count = limits.get(name) if isinstance(limits, Mapping) else None
        if count is not None and (isinstance(count, bool) or re.fullmatch(r"[0-9]{1,6}", str(count)) is None):
            yield Problem(
                f"{field}.resources.limits[{name}]",
                count,
                "must be a whole number: a GPU is given to one container whole",
            )


def _words(field: str, value: Any) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, list):
        example = (
            "[" + ", ".join(value.split()[:6]) + "]"
            if isinstance(value, str) and value.split()
            else "[python, train.py]"
        )
        yield Problem(field, value, f"must be a list with one item for each word, for example {example}")
        return
    for at, word in enumerate(value):
        if not isinstance(word, str):
            yield Problem(f"{field}[{at}]", word, "must be text; put it in quotes")


def _environment(field: str, value: Any) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, list):
        yield Problem(field, value, "must be a list of `{name: ..., value: ...}`")
        return
    for at, entry in enumerate(value):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(name, str) or not name:
            yield Problem(f"{field}[{at}]", entry, "must be a map with the variable's name: `{name: ..., value: ...}`")
            continue
        if name in RESERVED_ENV or (name.startswith(RESERVED_PREFIX) and name not in USER_ENV):
            yield Problem(
                f"{field}[{at}].name",
                name,
                "must be left out: TrainJob sets this variable itself, differently for each worker or attempt",
            )
        if "value" in entry and not isinstance(entry["value"], str):
            yield Problem(f"{field}[{at}].value", entry["value"], "must be text; put it in quotes")
