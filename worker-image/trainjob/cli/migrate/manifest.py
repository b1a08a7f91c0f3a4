"""Manifests of Kubeflow become ours: PyTorchJob, and the TrainJob of its version 2. Pure.

What is meant the same is carried over, everything else is told in a comment before the new manifest, which is
validated. Called by `command`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.cli import manifest, validate
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api.contract import API_VERSION, CLI_USAGE, KIND, TRAINER_CONTAINER
from trainjob_api.validation import InvalidTrainJob, parse_trainjob

Document = dict[str, Any]
_KEPT = ("name", "generateName", "namespace", "labels", "annotations")
_STORAGE = "checkpoints: give spec.checkpoint.storage (a path that all pods share, or s3://bucket/folder)"
_POLICIES = {
    "ttlSecondsAfterFinished": "ttlSecondsAfterFinished",
    "activeDeadlineSeconds": "activeDeadlineSeconds",
    "suspend": "suspend",
    "managedBy": "managedBy",
    "cleanPodPolicy": "podCleanup",
}
"""Of spec.runPolicy -> of our spec."""


def migrate(path: str, text: str) -> str:
    """The new manifest of a file's jobs. Raises CommandError."""
    import yaml

    documents = manifest.parsed(path, text)
    theirs = [one for one in documents if manifest.is_kubeflows(one)]
    if not theirs:
        kinds = ", ".join(sorted({str(one.get("kind")) if isinstance(one, dict) else "text" for one in documents}))
        raise CommandError(
            f"{path} holds no job of Kubeflow (found: {kinds or 'nothing'})",
            next_step="a PyTorchJob (kubeflow.org/v1) or a TrainJob (trainer.kubeflow.org) is read",
            code=CLI_USAGE,
        )
    parts = []
    for document in theirs:
        notes: list[str] = []
        made = _pytorch_job(document, notes) if document["kind"] == "PyTorchJob" else _train_job(document, notes)
        try:
            job = parse_trainjob(made)
        except InvalidTrainJob as error:
            raise CommandError(
                f"{path}: what {document['kind']} {_name(document)} becomes is not valid\n{error}",
                next_step=f"correct these fields in {path}, and run it again",
            ) from None
        said = [f"# {validate.summary(job)}", *(f"# look at: {note}" for note in notes)]
        parts.append("\n".join(said) + "\n" + yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=120))
    skipped = len(documents) - len(theirs)
    tail = f"# {wording.count(skipped, 'object')} of other kinds in {path}: not carried over\n" if skipped else ""
    return "---\n".join(parts) + tail


def _name(document: Document) -> str:
    return str((document.get("metadata") or {}).get("name", "without a name"))


def _made(document: Document, spec: Document) -> Document:
    metadata = {name: value for name, value in (document.get("metadata") or {}).items() if name in _KEPT}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


# -- PyTorchJob --------------------------------------------------------------------------------------------------------


def _pytorch_job(document: Document, notes: list[str]) -> Document:
    theirs = document["spec"]
    replicas: Mapping[str, Any] = theirs.get("pytorchReplicaSpecs") or {}
    roles = {role: part for role, part in replicas.items() if isinstance(part, dict)}
    taken = roles.get("Worker") or roles.get("Master") or {}
    spec: Document = {"workers": sum(int(part.get("replicas", 1)) for part in roles.values())}
    if len(roles) > 1:
        notes.append(f"Master and Worker are {spec['workers']} workers alike; the first of them has rank 0")
        differing = _differing(roles["Master"].get("template"), taken.get("template"))
        if differing:
            notes.append(f"the Master's template is not carried over; it differs in {', '.join(differing)}")
    _processes(spec, theirs.get("nprocPerNode"), notes)
    spec["template"] = _template(taken.get("template"), notes)
    _failures(spec, theirs, str(taken.get("restartPolicy", "Always")), notes)
    _policies(spec, theirs.get("runPolicy") or {}, notes)
    elastic = theirs.get("elasticPolicy")
    if elastic:
        _elastic(spec, elastic, notes)
        if "nProcPerNode" in elastic and "nprocPerNode" not in theirs:
            _processes(spec, elastic["nProcPerNode"], notes)
    notes.append(_STORAGE)
    return _made(document, spec)


def _elastic(spec: Document, policy: Mapping[str, Any], notes: list[str]) -> None:
    if "minReplicas" in policy or "maxReplicas" in policy:
        written = spec["workers"]
        least = int(policy.get("minReplicas", 1))
        most = int(policy.get("maxReplicas", max(written, least)))
        spec["workers"] = max(least, min(written, most))
        spec["elastic"] = {"minWorkers": least, "maxWorkers": most}
        was = "" if spec["workers"] == written else f" ({written} in the file)"
        notes.append(f"elasticPolicy: {least} to {most} workers, {spec['workers']} of them wished{was}")
    if "metrics" in policy:
        notes.append(
            "elasticPolicy.metrics has no counterpart: `kubectl scale` or an autoscaler of yours changes workers"
        )


def _failures(spec: Document, theirs: Document, restarts: str, notes: list[str]) -> None:
    limit = (theirs.get("runPolicy") or {}).get("backoffLimit", (theirs.get("elasticPolicy") or {}).get("maxRestarts"))
    if restarts == "Never":
        spec["failurePolicy"] = {"maxFailures": 0}
    elif limit is not None:
        spec["failurePolicy"] = {"maxFailures": int(limit)}
    else:
        notes.append(f"restartPolicy {restarts}: restarts of the whole group, 3 by default (failurePolicy.maxFailures)")
    if restarts == "ExitCode":
        notes.append(
            "restartPolicy ExitCode: exit codes 1-127 ended the job; failurePolicy.rules has {exitCodes: [...], "
            "action: Fail} for those that should"
        )


def _policies(spec: Document, policy: Mapping[str, Any], notes: list[str]) -> None:
    for name, value in policy.items():
        if name in _POLICIES:
            spec[_POLICIES[name]] = value
        elif name == "schedulingPolicy":
            notes.append(
                "runPolicy.schedulingPolicy: a start waits until all its pods have nodes; a queue's and a scheduler's "
                "names go into the template (labels, schedulerName)"
            )
        elif name != "backoffLimit":
            notes.append(f"runPolicy.{name} has no counterpart")


# -- TrainJob of version 2 ---------------------------------------------------------------------------------------------


def _train_job(document: Document, notes: list[str]) -> Document:
    theirs = document["spec"]
    trainer: Mapping[str, Any] = theirs.get("trainer") or {}
    container: Document = {"name": TRAINER_CONTAINER, "image": trainer.get("image") or "IMAGE"}
    if not trainer.get("image"):
        notes.append("image: it was the runtime's; put it in place of IMAGE")
    for name in ("command", "args", "env"):
        if trainer.get(name):
            container[name] = trainer[name]
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    spec: Document = {"workers": int(trainer.get("numNodes") or 1)}
    if not trainer.get("numNodes"):
        notes.append("workers: their number was the runtime's; 1 is taken")
    _processes(spec, trainer.get("numProcPerNode"), notes)
    template: Document = {"spec": {"containers": [container]}}
    for name in ("labels", "annotations"):
        if theirs.get(name):
            template.setdefault("metadata", {})[name] = theirs[name]
    spec["template"] = template
    for name in ("suspend", "managedBy"):
        if name in theirs:
            spec[name] = theirs[name]
    reference = (theirs.get("runtimeRef") or {}).get("name")
    if reference:
        notes.append(f"runtimeRef {reference}: what that runtime adds to the pods goes into template")
    for name in ("initializer", "podSpecOverrides", "podTemplateOverrides", "runtimePatches"):
        if theirs.get(name):
            notes.append(f"{name} is not carried over: template holds the whole pod")
    notes.append(_STORAGE)
    return _made(document, spec)


# -- both --------------------------------------------------------------------------------------------------------------


def _processes(spec: Document, count: object, notes: list[str]) -> None:
    if count is None:
        return
    if str(count) in ("auto", "gpu"):
        spec["processesPerWorker"] = "auto"
    elif str(count).isdigit():
        spec["processesPerWorker"] = int(str(count))
    else:
        notes.append(f"processes per node {count!r}: give processesPerWorker a number")


def _template(theirs: Any, notes: list[str]) -> Document:
    """The pod as it is; the container that trains has our name."""
    template: Document = dict(theirs or {})
    pod: Document = {key: value for key, value in (template.get("spec") or {}).items() if key != "restartPolicy"}
    containers = [dict(one) for one in pod.get("containers") or []]
    names = [one.get("name") for one in containers]
    if containers and TRAINER_CONTAINER not in names:
        containers[names.index("pytorch") if "pytorch" in names else 0]["name"] = TRAINER_CONTAINER
    for one in containers:
        words = [str(word) for word in [*(one.get("command") or ()), *(one.get("args") or ())]]
        if one.get("name") == TRAINER_CONTAINER and any(word.endswith("torchrun") for word in words[:1]):
            notes.append("torchrun works as it is; `python script.py` alone gives each rank its own process too")
        elif one.get("name") == TRAINER_CONTAINER and not words:
            notes.append("command: a worker's command is given here, the image's own is not run")
    pod["containers"] = containers
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if key in _KEPT[3:]}
    return {**({"metadata": metadata} if metadata else {}), "spec": pod}


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Fields in which two templates differ, at most four."""
    if isinstance(one, dict) and isinstance(other, dict):
        inner = (_differing(one.get(key), other.get(key), f"{path}.{key}") for key in sorted({*one, *other}))
        return [found for each in inner for found in each][:4]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        inner = (_differing(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(one, other, strict=True)))
        return [found for each in inner for found in each][:4]
    return [] if one == other else [path.lstrip(".") or "all of it"]
