"""`tj suspend`, `resume`, `restart`, `scale`, `cancel`, `delete`: one change to a job, and a line about what comes
of it.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, this_machine
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api import defaults
from trainjob_api.contract import CLI_OK, REASON_SUSPENDED

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Manifest
    from trainjob_api.v1alpha1 import TrainJob

PODS_GONE_S = 300.0
POLL_S = 0.5


def suspend(args: argparse.Namespace) -> int:
    """spec.suspend: true."""
    place, _, job = _changeable(args, "suspend")
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        jobs_api.suspend(place.api, place.namespace, args.name)
    print(
        f"{args.name} is being suspended: its pods end{_when(job)}, {_kept(job)}; `tj resume "
        f"{args.name}{place.flags}` lets it continue"
    )
    return CLI_OK


def resume(args: argparse.Namespace) -> int:
    """spec.suspend: false, and no mark of a cancellation."""
    place, _, job = _changeable(args, "resume")
    from trainjob.launch.cluster import jobs_api

    if not job.spec.suspend:
        print(f"{args.name} is not suspended; it is {job.status.phase or 'new'}")
        return CLI_OK
    with connect.refusals():
        jobs_api.resume(place.api, place.namespace, args.name)
    waited = job.status.boundary
    if waited is not None and waited.cause == REASON_SUSPENDED:
        print(f"{args.name} was not suspended yet: training continues")
        return CLI_OK
    latest = job.status.checkpoint.latest
    start = f"resumes from checkpoint {latest.id}" if latest and job.spec.checkpoint.storage else "starts"
    print(f"{args.name} {start}; `tj logs {args.name}{place.flags} -f` follows it")
    return CLI_OK


def restart(args: argparse.Namespace) -> int:
    """A new attempt."""
    place, _, job = _changeable(args, "restart")
    from trainjob.launch.cluster import jobs_api

    if job.spec.suspend:
        raise CommandError(
            f"{args.name} is suspended, there is nothing to restart", next_step=f"tj resume {args.name}{place.flags}"
        )
    with connect.refusals():
        jobs_api.restart(place.api, place.namespace, args.name)
    number = job.status.attempt.number if job.status.attempt else 0
    print(
        f"{args.name}: attempt {number + 1} begins as soon as the ranks of attempt {number} have stopped{_when(job)}; "
        "it is not counted as a failure"
    )
    return CLI_OK


def scale(args: argparse.Namespace) -> int:
    """Another number of workers."""
    place, _, job = _changeable(args, "scale")
    from trainjob.launch.cluster import jobs_api

    if job.spec.workers == args.workers:
        print(f"{args.name} has {wording.count(args.workers, 'worker')} already")
        return CLI_OK
    with connect.refusals():
        jobs_api.scale(place.api, place.namespace, args.name, args.workers)
    up = "once the new workers are up " if args.workers > job.spec.workers else ""
    print(
        f"{args.name}: {job.spec.workers} -> {wording.count(args.workers, 'worker')}; {up}the ranks start again at the "
        f"new size{_when(job)}, {_from(job)}"
    )
    return CLI_OK


def cancel(args: argparse.Namespace) -> int:
    """Suspended, and marked as meant for good."""
    place, manifest, job = _changeable(args, "cancel")
    from trainjob.launch.cluster import jobs_api

    if jobs_api.cancelled(manifest):
        print(f"{args.name} is cancelled already")
        return CLI_OK
    with connect.refusals():
        jobs_api.suspend(place.api, place.namespace, args.name, cancelled=True)
    print(
        f"{args.name} is cancelled: its pods end, {_kept(job)}; `tj resume {args.name}{place.flags}` takes it back, "
        f"`tj delete {args.name}{place.flags}` removes it"
    )
    return CLI_OK


def delete(args: argparse.Namespace) -> int:
    """Delete the object; with --wait until it and its pods are gone."""
    this_machine.refuse(args, "delete")
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api
    from trainjob.launch.cluster.cluster_run import gone

    with connect.refusals():
        uid = jobs_api.get(place.api, place.namespace, args.name)["metadata"]["uid"]
        jobs_api.delete(place.api, place.namespace, args.name)
        if args.wait and not (
            gone(place.api, place.namespace, args.name, uid, PODS_GONE_S) and _pods_gone(place, args.name, uid)
        ):
            raise CommandError(
                f"{args.name} is deleted, but after {wording.duration(PODS_GONE_S)} not everything of it is gone",
                next_step=f"`kubectl get tj,pods -l trainjob.dev/job={args.name} -n {place.namespace}` shows what is "
                "left, and why it does not end",
            )
    print(deleted(args.name))
    return CLI_OK


def deleted(name: str) -> str:
    """What is said of a job that was deleted."""
    return f"{name} is deleted; what it stored stays on its storage"


def _pods_gone(place: connect.Place, name: str, uid: str) -> bool:
    from trainjob.launch.cluster import jobs_api

    deadline = time.monotonic() + PODS_GONE_S
    while time.monotonic() < deadline:
        pods = jobs_api.pods(place.api, place.namespace, name)
        if not any(owner.get("uid") == uid for pod in pods for owner in pod["metadata"].get("ownerReferences") or ()):
            return True
        time.sleep(POLL_S)
    return False


def _changeable(args: argparse.Namespace, verb: str) -> tuple[connect.Place, Manifest, TrainJob]:
    """The job, if it is not over. Raises CommandError."""
    this_machine.refuse(args, verb)
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        manifest = jobs_api.get(place.api, place.namespace, args.name)
        job = jobs_api.read(manifest)
    if job.status.finished:
        raise CommandError(
            f"{args.name} is {job.status.phase}: a job that is over does not change any more, there is nothing to "
            f"{verb}",
            next_step=f"`tj status {args.name}{place.flags}` shows how it ended; `tj submit ... --replace` starts it "
            "anew",
        )
    return place, manifest, job


def _when(job: TrainJob) -> str:
    """Where a planned change ends the attempt that trains, with a blank in front; empty: at once."""
    attempt, wait_s = job.status.attempt, job.spec.boundary_timeout_seconds
    trains = attempt is not None and attempt.state == "Running" and job.status.progress.position > 0
    return f" {wording.boundary(wait_s)}" if trains and wait_s and defaults.uses_agent(job.spec) else ""


def _kept(job: TrainJob) -> str:
    latest = job.status.checkpoint.latest
    if job.spec.checkpoint.storage is None:
        return "and without storage (spec.checkpoint.storage) its checkpoints with them"
    return f"checkpoint {latest.id} stays" if latest else "there is no checkpoint yet"


def _from(job: TrainJob) -> str:
    latest = job.status.checkpoint.latest
    return (
        f"from checkpoint {latest.id} or a newer one" if latest else "from the beginning, as there is no checkpoint yet"
    )
