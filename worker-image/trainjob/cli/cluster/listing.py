"""`tj list`: one line per job, as `kubectl get tj` shows it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect
from trainjob.cli.local.listing import check_states
from trainjob.screen import table, wording
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Manifest

HEADER = ("NAME", "STATUS", "WORKERS", "STEP", "PROGRESS", "REPORT", "RESTARTS", "AGE")
STATES = ("New", "Pending", "Starting", "Running", "Restarting", "Suspended", "Cancelled", "Complete", "Failed")
WIDE = ("ATTEMPT", "SPARES", "REASON", "METRIC", "CHECKPOINT")


def listing(args: argparse.Namespace) -> int:
    """Print the jobs."""
    check_states(args.status or (), STATES)
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        found = place.api.items(
            jobs_api.collection(None if args.all_namespaces else place.namespace),
            **({"labelSelector": args.selector} if args.selector else {}),
        )
    if args.status:
        found = [job for job in found if phase(job, (job.get("status") or {}).get("phase")).lower() in args.status]
    found.sort(key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))
    if args.output == "json":
        items = [jobs_api.shown(job) for job in found]
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
    elif args.output == "name":
        for job in found:
            print(f"{contract.KIND.lower()}.{contract.GROUP}/{job['metadata']['name']}")
    elif not found:
        where = "this cluster" if args.all_namespaces else f"namespace {place.namespace}"
        print(f"there are no {'such ' if args.selector or args.status else ''}jobs in {where}")
    else:
        show(found, namespaces=args.all_namespaces, wide=args.output == "wide", now=time.time())
    return contract.CLI_OK


def show(found: Sequence[Manifest], *, namespaces: bool, wide: bool, now: float) -> None:
    """Print the table."""
    header = (*(("NAMESPACE",) if namespaces else ()), *HEADER, *(WIDE if wide else ()))
    table.show(header, [row(job, namespaces=namespaces, wide=wide, now=now) for job in found])


def row(manifest: Manifest, *, namespaces: bool, wide: bool, now: float) -> list[str]:
    """The cells of a job."""
    from trainjob.launch.cluster import jobs_api

    job = jobs_api.read(manifest)
    status, progress = job.status, job.status.progress
    attempt, latest = status.attempt, status.checkpoint.latest
    most = job.spec.failure_policy.max_failures
    cells = [
        job.metadata.name,
        phase(manifest, status.phase),
        status.workers.summary or f"{status.workers.ready}/{status.workers.desired or job.spec.workers}",
        ""
        if progress.step is None
        else str(progress.step)
        if progress.total_steps is None
        else f"{progress.step}/{progress.total_steps}",
        "" if progress.percent is None else f"{progress.percent}%",
        age(progress.last_report_time, now),
        str(status.failures.counted) if most < 0 else f"{status.failures.counted}/{most}",
        age(job.metadata.creation_timestamp, now),
    ]
    if wide:
        metric = next(iter(progress.metrics.items()), None)
        cells += [
            "" if attempt is None else str(attempt.number),
            status.workers.spares or "",
            reason(manifest),
            "" if metric is None else f"{metric[0]}={wording.number(metric[1])}",
            "" if latest is None else latest.id if latest.step is None else f"{latest.id} (step {latest.step})",
        ]
    return [*([job.metadata.namespace] if namespaces else []), *cells]


def phase(manifest: Manifest, said: str | None) -> str:
    """The status's own word, or that nobody has looked at the job yet, or that it was cancelled."""
    from trainjob.launch.cluster import jobs_api

    if said not in ("Complete", "Failed") and jobs_api.cancelled(manifest):
        return "Cancelled"
    return said or "New"


def reason(manifest: Manifest) -> str:
    """Of the condition that says most: why it failed, is degraded, or is not running."""
    conditions = {condition["type"]: condition for condition in (manifest.get("status") or {}).get("conditions") or ()}
    for name, state in (("Failed", "True"), ("Complete", "True"), ("Suspended", "True"), ("Degraded", "True")):
        if conditions.get(name, {}).get("status") == state:
            return str(conditions[name].get("reason", ""))
    for name in ("ResourcesCreated", "PodsScheduled", "WorkersReady", "Progressing"):
        if name in conditions and conditions[name].get("status") != "True":
            return str(conditions[name].get("reason", ""))
    return str(conditions.get("Progressing", {}).get("reason", ""))


def age(since: datetime | None, now: float) -> str:
    """As `wording.age`; empty where it is not known."""
    return "" if since is None else wording.age(since.timestamp(), now)
