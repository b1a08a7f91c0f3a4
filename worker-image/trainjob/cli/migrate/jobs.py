"""TFJob, MPIJob and JobSet become ours. Pure.

Each function gives our spec with their template as it is, or refuses with the sentence that says why and what to do.
Called by `manifest`, which does what is alike for all kinds.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from trainjob.cli.errors import CommandError
from trainjob.cli.migrate import mpirun, pods
from trainjob.cli.migrate.told import Document, Told
from trainjob_api.contract import CLI_ERROR


def tf_job(document: Document, told: Told) -> tuple[Document, str]:
    """With its restartPolicy. Chief and Worker are alike here. Raises CommandError for parameter servers."""
    theirs = document["spec"]
    roles = {name: part for name, part in (theirs.get("tfReplicaSpecs") or {}).items() if isinstance(part, dict)}
    if _count(roles.get("PS")):
        _refuse(
            document,
            "parameter servers (tfReplicaSpecs.PS) have no counterpart: all workers are alike, and train together",
            "train with tf.distribute.MultiWorkerMirroredStrategy, and take PS out of the file",
        )
    if _count(roles.get("Evaluator")):
        told.look("tfReplicaSpecs.Evaluator is not carried over: a job of its own evaluates checkpoints")
    trains = {name: roles[name] for name in ("Chief", "Master", "Worker") if _count(roles.get(name))}
    for name, part in trains.items():
        told.change(f"spec.tfReplicaSpecs.{name}.replicas {_count(part)}", "spec.workers")
    taken = trains.get("Worker") or next(iter(trains.values()), {})
    if len(trains) > 1:
        told.look("the first worker has rank 0; the template is the Worker's")
    told.look(
        "TF_CONFIG is set where a MultiWorkerMirroredStrategy is made; a script that reads it before calls "
        "trainjob.tensorflow.set_tf_config() first"
    )
    spec = {"workers": sum(map(_count, trains.values())), "template": dict(taken.get("template") or {})}
    return spec, str(taken.get("restartPolicy", "Never"))


def mpi_job(document: Document, told: Told) -> tuple[Document, str]:
    """With its launcher's restartPolicy. `mpirun` becomes the command of all workers: it runs on the first of them.
    Raises CommandError where there is none, or none that is known.
    """
    theirs = document["spec"]
    _check_implementation(document, str(theirs.get("mpiImplementation", "OpenMPI")))
    roles: Mapping[str, Any] = theirs.get("mpiReplicaSpecs") or {}
    worker = roles.get("Worker") or {}
    launcher = pods.trainer(dict((roles.get("Launcher") or {}).get("template") or {}), "launcher")
    words = [str(word) for word in [*(launcher.get("command") or ()), *(launcher.get("args") or ())]]
    try:
        command, left_out = mpirun.without_places(mpirun.line_of(words))
    except mpirun.NotPlain as error:
        _refuse(
            document,
            f"its launcher runs {shlex.join(words) or 'what its image says'}, which is {error}",
            "write the Launcher's command as [mpirun, ..., PROGRAM, ARGUMENTS]",
        )
    told.change(f"spec.mpiReplicaSpecs.Worker.replicas {_count(worker)}", "spec.workers")
    told.change("spec.mpiReplicaSpecs.Launcher", f"left out; `{shlex.join(command)}` runs on the first worker")
    if left_out:
        told.change(f"mpirun's {' '.join(left_out)}", "left out; it starts processesPerWorker ranks on each worker")
    told.look("Open MPI 4 in the image; no ssh server and no keys are needed (docs/frameworks.md, MPI)")
    theirs_env = [one.get("name") for one in launcher.get("env") or () if isinstance(one, dict)]
    template = dict(worker.get("template") or {})
    container = pods.trainer(template, "worker")
    container.pop("args", None)
    container["command"] = command
    if theirs_env:
        own = {one.get("name") for one in container.get("env") or () if isinstance(one, dict)}
        container["env"] = [
            *(container.get("env") or ()),
            *(one for one in launcher["env"] if isinstance(one, dict) and one.get("name") not in own),
        ]
        told.change("the launcher's variables", "the workers'")
    spec: Document = {"workers": _count(worker), "template": pods.replaced(template, container)}
    if "slotsPerWorker" in theirs:
        told.change(f"spec.slotsPerWorker {theirs['slotsPerWorker']}", "spec.processesPerWorker")
        spec["processesPerWorker"] = theirs["slotsPerWorker"]
    return spec, str((roles.get("Launcher") or {}).get("restartPolicy", "OnFailure"))


def _check_implementation(document: Document, name: str) -> None:
    if name != "OpenMPI":
        _refuse(
            document,
            f"its mpiImplementation is {name}, and here mpirun is Open MPI's",
            "use an image with Open MPI 4, and take mpiImplementation out of the file",
        )


def job_set(document: Document, told: Told) -> Document:
    """One group of pods, all alike. Raises CommandError where there are more."""
    theirs = document["spec"]
    groups = [one for one in theirs.get("replicatedJobs") or [] if isinstance(one, dict)]
    if len(groups) != 1:
        names = ", ".join(str(one.get("name")) for one in groups) or "none"
        _refuse(
            document,
            f"it has {len(groups)} groups of pods ({names}), and a TrainJob has one, whose workers are alike",
            "leave the group that trains in the file, and what else it starts in a file of its own",
        )
    (group,) = groups
    job: Mapping[str, Any] = (group.get("template") or {}).get("spec") or {}
    replicas, parallelism = int(group.get("replicas", 1)), int(job.get("parallelism", 1))
    at = f"spec.replicatedJobs[{group.get('name')}]"
    told.change(f"{at}: {replicas} replicas with parallelism {parallelism}", "spec.workers")
    for name in ("successPolicy", "startupPolicy", "network", "coordinator"):
        if name in theirs:
            told.look(f"spec.{name} has no counterpart: all workers start together, and all end")
    spec: Document = {"workers": replicas * parallelism}
    policy = theirs.get("failurePolicy") or {}
    if "maxRestarts" in policy:
        told.change(f"spec.failurePolicy.maxRestarts {policy['maxRestarts']}", "spec.failurePolicy.maxFailures")
        spec["failurePolicy"] = {"maxFailures": int(policy["maxRestarts"])}
    if policy.get("rules"):
        told.look("spec.failurePolicy.rules: failurePolicy.rules here are about exit codes and reasons")
    for theirs_name, ours in (("suspend", "suspend"), ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished")):
        if theirs_name in theirs:
            spec[ours] = theirs[theirs_name]
    spec["template"] = dict(job.get("template") or {})
    return spec


def _count(part: Any) -> int:
    return int(part.get("replicas", 1)) if isinstance(part, dict) else 0


def _refuse(document: Document, why: str, way_out: str) -> NoReturn:
    name = (document.get("metadata") or {}).get("name", "without a name")
    raise CommandError(f"{document['kind']} {name} cannot become a TrainJob: {why}", next_step=way_out, code=CLI_ERROR)
