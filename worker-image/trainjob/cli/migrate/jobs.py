"""TFJob, MPIJob and JobSet become ours. Pure.

Each function gives our spec with their template as it is, or refuses with the sentence that says why and what to do.
Called by `manifest`, which does what is alike for all kinds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from trainjob.cli.errors import CommandError
from trainjob.cli.migrate import pods
from trainjob.cli.migrate.told import Document, Told
from trainjob_api.contract import CLI_ERROR

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")


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
    told.look("TF_CONFIG: call trainjob.tensorflow.set_tf_config() before the strategy is made, at each start")
    spec = {"workers": sum(map(_count, trains.values())), "template": dict(taken.get("template") or {})}
    return spec, str(taken.get("restartPolicy", "Never"))


def mpi_job(document: Document, told: Told) -> tuple[Document, str]:
    """With its launcher's restartPolicy. What `mpirun` starts in the launcher, each rank starts itself. Raises
    CommandError where there is no mpirun.
    """
    theirs = document["spec"]
    roles: Mapping[str, Any] = theirs.get("mpiReplicaSpecs") or {}
    worker = roles.get("Worker") or {}
    launcher = pods.trainer(dict((roles.get("Launcher") or {}).get("template") or {}), "launcher")
    words = [str(word) for word in [*(launcher.get("command") or ()), *(launcher.get("args") or ())]]
    command = _behind_mpirun(words)
    if command is None:
        _refuse(
            document,
            f"its launcher runs {shlex.join(words) or 'what its image says'}, of which no `mpirun ... python` is "
            "found: here no pod starts processes in others",
            "write the Launcher's command as [mpirun, ..., python, SCRIPT], for a script that takes its rank from RANK",
        )
    told.change(f"spec.mpiReplicaSpecs.Worker.replicas {_count(worker)}", "spec.workers")
    told.change("spec.mpiReplicaSpecs.Launcher", f"left out; each rank runs `{shlex.join(command)}` itself")
    told.look(
        "MPI is not there: the script takes its place from RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR; with mpi4py, "
        "Horovod or OMPI_COMM_WORLD_RANK each rank would train alone"
    )
    template = dict(worker.get("template") or {})
    container = pods.trainer(template, "worker")
    container.pop("args", None)
    container["command"] = command
    spec: Document = {"workers": _count(worker), "template": pods.replaced(template, container)}
    if "slotsPerWorker" in theirs:
        told.change(f"spec.slotsPerWorker {theirs['slotsPerWorker']}", "spec.processesPerWorker")
        spec["processesPerWorker"] = theirs["slotsPerWorker"]
    return spec, str((roles.get("Launcher") or {}).get("restartPolicy", "OnFailure"))


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


def _behind_mpirun(words: list[str]) -> list[str] | None:
    """The Python command that mpirun is to start; None: there is none that could be said for sure."""
    for line in _lines(words):
        at = next((n for n, word in enumerate(line) if word.rpartition("/")[2] in ("mpirun", "mpiexec")), None)
        if at is not None:
            begin = next((n for n in range(at, len(line)) if _PYTHON.fullmatch(line[n])), None)
            return None if begin is None else line[begin:]
    return None


def _lines(words: list[str]) -> Iterator[list[str]]:
    """The words, and a shell's line among them that is one plain command."""
    yield words
    for word in words:
        if " " in word.strip() and not re.search(r"[;&|<>$`\n]", word.strip()):
            try:
                yield shlex.split(word)
            except ValueError:
                continue


def _count(part: Any) -> int:
    return int(part.get("replicas", 1)) if isinstance(part, dict) else 0


def _refuse(document: Document, why: str, way_out: str) -> NoReturn:
    name = (document.get("metadata") or {}).get("name", "without a name")
    raise CommandError(f"{document['kind']} {name} cannot become a TrainJob: {why}", next_step=way_out, code=CLI_ERROR)
