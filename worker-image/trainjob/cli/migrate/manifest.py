"""Manifests of Kubeflow become ours: PyTorchJob, the TrainJob of its version 2, and those of `jobs`. Pure.

What is meant the same is carried over, everything else is told in a comment before the new manifest, which is
validated. Called by `command`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainjob.cli import manifest, validate
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.cli.migrate import jobs, pods
from trainjob.cli.migrate.told import Document, Told
from trainjob.screen import wording
from trainjob_api.contract import API_VERSION, CLI_USAGE, KIND, TRAINER_CONTAINER
from trainjob_api.validation import InvalidTrainJob, parse_trainjob

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
            next_step="a PyTorchJob, TFJob or MPIJob (kubeflow.org), a TrainJob (trainer.kubeflow.org) or a JobSet "
            "(jobset.x-k8s.io) is read",
            code=CLI_USAGE,
        )
    parts = []
    for document in theirs:
        told = Told()
        made = _MADE[document["kind"]](document, told)
        try:
            job = parse_trainjob(made)
        except InvalidTrainJob as error:
            raise CommandError(
                f"{path}: what {document['kind']} {_name(document)} becomes is not valid\n{error}",
                next_step=f"correct these fields in {path}, then {AGAIN}",
            ) from None
        said = [f"# {validate.summary(job)}", *(f"# {line}" for line in told.lines)]
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


def _pytorch_job(document: Document, told: Told) -> Document:
    theirs = document["spec"]
    replicas: Mapping[str, Any] = theirs.get("pytorchReplicaSpecs") or {}
    roles = {role: part for role, part in replicas.items() if isinstance(part, dict)}
    taken = roles.get("Worker") or roles.get("Master") or {}
    spec: Document = {"workers": sum(int(part.get("replicas", 1)) for part in roles.values())}
    if len(roles) > 1:
        told.look(f"Master and Worker are {spec['workers']} workers alike; the first of them has rank 0")
        differing = _differing(roles["Master"].get("template"), taken.get("template"))
        if differing:
            told.look(f"the Master's template is not carried over; it differs in {', '.join(differing)}")
    _processes(spec, theirs.get("nprocPerNode"), told)
    spec["template"] = pods.template(taken.get("template"), told)
    _failures(spec, theirs, str(taken.get("restartPolicy", "Always")), told)
    _policies(spec, theirs.get("runPolicy") or {}, told)
    elastic = theirs.get("elasticPolicy")
    if elastic:
        _elastic(spec, elastic, told)
        if "nProcPerNode" in elastic and "nprocPerNode" not in theirs:
            _processes(spec, elastic["nProcPerNode"], told)
    told.look(_STORAGE)
    return _made(document, spec)


def _elastic(spec: Document, policy: Mapping[str, Any], told: Told) -> None:
    if "minReplicas" in policy or "maxReplicas" in policy:
        written = spec["workers"]
        least = int(policy.get("minReplicas", 1))
        most = int(policy.get("maxReplicas", max(written, least)))
        spec["workers"] = max(least, min(written, most))
        spec["elastic"] = {"minWorkers": least, "maxWorkers": most}
        was = "" if spec["workers"] == written else f" ({written} in the file)"
        told.look(f"elasticPolicy: {least} to {most} workers, {spec['workers']} of them wished{was}")
    if "metrics" in policy:
        told.look("elasticPolicy.metrics has no counterpart: `kubectl scale` or an autoscaler of yours changes workers")


def _failures(spec: Document, theirs: Document, restarts: str, told: Told) -> None:
    limit = (theirs.get("runPolicy") or {}).get("backoffLimit", (theirs.get("elasticPolicy") or {}).get("maxRestarts"))
    if restarts == "Never":
        spec["failurePolicy"] = {"maxFailures": 0}
    elif limit is not None:
        spec["failurePolicy"] = {"maxFailures": int(limit)}
    else:
        told.look(f"restartPolicy {restarts}: restarts of the whole group, 3 by default (failurePolicy.maxFailures)")
    if restarts == "ExitCode":
        told.look(
            "restartPolicy ExitCode: exit codes 1-127 ended the job; failurePolicy.rules has {exitCodes: [...], "
            "action: Fail} for those that should"
        )


def _policies(spec: Document, policy: Mapping[str, Any], told: Told) -> None:
    for name, value in policy.items():
        if name in _POLICIES:
            spec[_POLICIES[name]] = value
        elif name == "schedulingPolicy":
            told.look(
                "runPolicy.schedulingPolicy: a start waits until all its pods have nodes; a queue's and a scheduler's "
                "names go into the template (labels, schedulerName)"
            )
        elif name != "backoffLimit":
            told.look(f"runPolicy.{name} has no counterpart")


# -- TrainJob of version 2 ---------------------------------------------------------------------------------------------


def _train_job(document: Document, told: Told) -> Document:
    theirs = document["spec"]
    trainer: Mapping[str, Any] = theirs.get("trainer") or {}
    container: Document = {"name": TRAINER_CONTAINER, "image": trainer.get("image") or "IMAGE"}
    if not trainer.get("image"):
        told.look("image: it was the runtime's; put it in place of IMAGE")
    for name in ("command", "args", "env"):
        if trainer.get(name):
            container[name] = trainer[name]
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    spec: Document = {"workers": int(trainer.get("numNodes") or 1)}
    if not trainer.get("numNodes"):
        told.look("workers: their number was the runtime's; 1 is taken")
    _processes(spec, trainer.get("numProcPerNode"), told)
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
        told.look(f"runtimeRef {reference}: what that runtime adds to the pods goes into template")
    for name in ("initializer", "podSpecOverrides", "podTemplateOverrides", "runtimePatches"):
        if theirs.get(name):
            told.look(f"{name} is not carried over: template holds the whole pod")
    told.look(_STORAGE)
    return _made(document, spec)


# -- those of `jobs` ---------------------------------------------------------------------------------------------------


def _tf_job(document: Document, told: Told) -> Document:
    return _with_policies(document, *jobs.tf_job(document, told), told)


def _mpi_job(document: Document, told: Told) -> Document:
    spec, restarts = jobs.mpi_job(document, told)
    _processes(spec, spec.pop("processesPerWorker", None), told)
    return _with_policies(document, spec, restarts, told)


def _with_policies(document: Document, spec: Document, restarts: str, told: Told) -> Document:
    spec["template"] = pods.template(spec["template"], told)
    _failures(spec, document["spec"], restarts, told)
    _policies(spec, document["spec"].get("runPolicy") or {}, told)
    told.look(_STORAGE)
    return _made(document, spec)


def _job_set(document: Document, told: Told) -> Document:
    spec = jobs.job_set(document, told)
    spec["template"] = pods.template(spec["template"], told)
    told.look(_STORAGE)
    return _made(document, spec)


_MADE: Mapping[str, Callable[[Document, Told], Document]] = {
    "PyTorchJob": _pytorch_job,
    "TrainJob": _train_job,
    "TFJob": _tf_job,
    "MPIJob": _mpi_job,
    "JobSet": _job_set,
}


# -- all of them -------------------------------------------------------------------------------------------------------


def _processes(spec: Document, count: object, told: Told) -> None:
    if count is None:
        return
    if str(count) in ("auto", "gpu"):
        spec["processesPerWorker"] = "auto"
    elif str(count).isdigit():
        spec["processesPerWorker"] = int(str(count))
    else:
        told.look(f"processes per node {count!r}: give processesPerWorker a number")


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Fields in which two templates differ, at most four."""
    if isinstance(one, dict) and isinstance(other, dict):
        inner = (_differing(one.get(key), other.get(key), f"{path}.{key}") for key in sorted({*one, *other}))
        return [found for each in inner for found in each][:4]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        inner = (_differing(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(one, other, strict=True)))
        return [found for each in inner for found in each][:4]
    return [] if one == other else [path.lstrip(".") or "all of it"]
