"""`tj status`: everything about one job on one screen, worst first where there is too much."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, listing, watch
from trainjob.cli.cluster import events as event_lines
from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import ApiError
from trainjob.launch.cluster.follow import Wanted
from trainjob.launch.cluster.pod_log import container_status, target
from trainjob.launch.outcome import log_choice as ranks
from trainjob.screen import attempts, clock, pace, table
from trainjob.screen import display as displays
from trainjob.screen.panel import Moment, panel
from trainjob_api import contract, defaults

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Manifest
    from trainjob_api.v1alpha1 import TrainJob

SHOWN_PODS = 16
SHOWN_EVENTS = 5
QUIET = frozenset(
    {contract.REASON_FINISHED, contract.REASON_NOT_FINISHED, contract.REASON_NOT_SUSPENDED, contract.REASON_HEALTHY}
)
"""Reasons of conditions that say nothing but that nothing is to be said."""


def status(args: argparse.Namespace) -> int:
    """Print it; with --watch until the job ends."""
    place = connect.connect(args)
    if args.watch:
        return watched(place, args.name, plain=args.plain)
    with connect.refusals():
        manifest = jobs_api.get(place.api, place.namespace, args.name)
        if args.output == "json":
            print(json.dumps(jobs_api.shown(manifest), indent=2))
            return contract.CLI_OK
        job = jobs_api.read(manifest)
        pods = jobs_api.pods(place.api, place.namespace, args.name)
        said = _events(place, args.name)
    _show(place, manifest, job, pods, said)
    return contract.CLI_OK


def watched(place: connect.Place, name: str, *, plain: bool) -> int:
    """Show it until it ends; the job's exit code."""
    wanted = Wanted(namespace=place.namespace, name=name)
    return watch.conclude(place, name, watch.watch(place, wanted, displays.choose(plain=plain)))


def _events(place: connect.Place, name: str) -> list[Manifest]:
    """The last ones; none for a user who may not read events."""
    try:
        return event_lines.fetch(place.api, place.namespace, name)[-SHOWN_EVENTS:]
    except ApiError as error:
        if error.status == 403:
            return []
        raise


def _show(place: connect.Place, manifest: Manifest, job: TrainJob, pods: list[Manifest], said: list[Manifest]) -> None:
    now = time.time()
    begun = job.metadata.creation_timestamp
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(f"{job.metadata.name}   namespace {job.metadata.namespace}   {listing.phase(manifest, job.status.phase)}")
    moment = Moment(now=now, started=begun.timestamp() if begun else now, ascii_only=not unicode, asked=True)
    lines = (*panel(job, pace.Pace.told(job.status), moment), *clock.goodput(job.status, now), *clock.forks(job.status))
    print(*(f"  {line}" for line in lines), sep="\n")
    print()
    conditions = [
        [c.type, c.status, c.reason, listing.age(c.last_transition_time, now), c.message]
        for c in job.status.conditions
        if c.reason not in QUIET
    ]
    if conditions:
        table.show(("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), conditions)
        print()
    if pods:
        rows = sorted((worker(job, pod) for pod in pods), key=lambda row: row[2] in ("Running", "Succeeded"))
        table.show(("POD", "RANKS", "STATE", "RESTARTS", "NODE", "WHY"), rows[:SHOWN_PODS])
        if len(rows) > SHOWN_PODS:
            print(
                f"and {len(rows) - SHOWN_PODS} more (`kubectl get pods -l {contract.LABEL_JOB}={job.metadata.name} "
                f"-n {place.namespace}`)"
            )
        print()
    if told := attempts.lines(job.status, now, width=table.width()):
        print(*told, "", sep="\n")
    if said:
        table.show(event_lines.HEADER, [event_lines.row(event, now) for event in said])
        print()
    print(*advice(place, manifest, job), *_before_nan(place, job), sep="\n")


def worker(job: TrainJob, pod: Manifest) -> list[str]:
    """The cells of a pod."""
    first, each = ranks.first_rank(job, jobs_api.slot(pod)), defaults.processes_per_worker(job.spec)
    which = "" if first is None else str(first) if each == 1 else f"{first}-{first + each - 1}"
    which = "spare" if ranks.is_spare(job, jobs_api.slot(pod)) else which
    state, why = pod_state(pod)
    restarts = str(container_status(pod, target(pod).container).get("restartCount") or 0)
    return [pod["metadata"]["name"], which, state, restarts, str(pod["spec"].get("nodeName") or ""), why]


def pod_state(pod: Manifest) -> tuple[str, str]:
    """The pod's phase, or a better word where a container has one; and the words that go with it."""
    said = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating", ""
    for status in (*(said.get("initContainerStatuses") or ()), *(said.get("containerStatuses") or ())):
        waiting = (status.get("state") or {}).get("waiting") or {}
        ended = (status.get("state") or {}).get("terminated") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return str(waiting["reason"]), _line(waiting.get("message"))
        if ended.get("exitCode"):
            return str(
                ended.get("reason") or "Error"
            ), f"exit code {ended['exitCode']} {_line(ended.get('message'))}".strip()
    unscheduled = next(
        (c for c in said.get("conditions") or () if c.get("type") == "PodScheduled" and c.get("status") == "False"),
        None,
    )
    if unscheduled is not None:
        return str(unscheduled.get("reason") or "Unschedulable"), _line(unscheduled.get("message"))
    return str(said.get("phase") or "Pending"), _line(said.get("message"))


def _line(text: object) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= 160 else words[:157] + "..."


def _before_nan(place: connect.Place, job: TrainJob) -> list[str]:
    """Of a job whose loss became NaN: how the checkpoint from before is found, which this machine may not see."""
    seen = job.status.progress.non_finite
    if seen is None or job.status.checkpoint.latest is None or job.spec.checkpoint.storage is None:
        return []
    where = f"report {seen.position + 1}" if seen.step is None else f"step {seen.step}"
    listed = f"`tj checkpoints list {job.metadata.name}{place.flags}`"
    return [
        f"      {seen.metric} became {seen.value} at {where}: {listed} shows which "
        "checkpoints are from before; mend the cause and set spec.checkpoint.resumeFrom to the URI of one"
    ]


def advice(place: connect.Place, manifest: Manifest, job: TrainJob) -> list[str]:
    """What to type next in this state."""
    name, flags = job.metadata.name, place.flags
    if job.status.holds("Failed"):
        return watch.explained(place, job)
    if job.status.holds("Complete"):
        return watch.completed(job)
    if job.spec.suspend:
        return [f"next: `tj resume {name}{flags}` lets it continue"]
    if job.status.phase is None:
        return ["no operator has looked at this job yet", "next: `tj doctor` says whether one runs"]
    running = job.status.attempt is not None and job.status.attempt.state == "Running"
    still = pace.stands_still(job.status, time.time())
    look = f"`tj stack {name}{flags}` shows where its ranks are, " if still else ""
    return [
        f"next: {look}`tj logs {name}{flags} -f` follows its ranks"
        if running
        else f"next: `tj events {name}{flags}` tells what the cluster says about its pods"
    ]
