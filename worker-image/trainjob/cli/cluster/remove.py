"""`tj rm` of a cluster's jobs: `tj delete` for jobs that no longer run. All are looked at before the first one goes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, control
from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_OK, CLI_USAGE

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob


def remove(args: argparse.Namespace) -> int:
    """Delete what is named, unless one of the jobs runs."""
    if not args.names:
        raise CommandError("say which jobs, by their names", next_step="`tj list --cluster` shows them", code=CLI_USAGE)
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    names = list(dict.fromkeys(args.names))
    with connect.refusals():
        for name in names:
            _refuse_running(jobs_api.read(jobs_api.get(place.api, place.namespace, name)), place.flags)
        for name in names:
            jobs_api.delete(place.api, place.namespace, name)
            print(control.deleted(name), flush=True)
    return CLI_OK


def _refuse_running(job: TrainJob, flags: str) -> None:
    if job.status.finished or job.spec.suspend:
        return
    name = job.metadata.name
    raise CommandError(
        f"{name} runs; nothing was removed",
        next_step=f"`tj stop {name}{flags}` stops it first, `tj delete {name}{flags}` deletes it as it is",
    )
