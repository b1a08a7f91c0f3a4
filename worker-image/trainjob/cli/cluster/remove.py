"""`tj rm` of a cluster's jobs: `tj delete` for jobs that no longer run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, control
from trainjob.cli.errors import CommandError, for_each
from trainjob_api.contract import CLI_OK, CLI_USAGE

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob


def remove(args: argparse.Namespace) -> int:
    """Delete what is named; a job that runs stays."""
    if not args.names:
        raise CommandError("say which jobs, by their names", next_step="`tj list --cluster` shows them", code=CLI_USAGE)
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    def delete(name: str) -> int:
        with connect.refusals():
            _refuse_running(jobs_api.read(jobs_api.get(place.api, place.namespace, name)), place.flags)
            jobs_api.delete(place.api, place.namespace, name)
        print(control.deleted(name), flush=True)
        return CLI_OK

    return for_each(args.names, delete)


def _refuse_running(job: TrainJob, flags: str) -> None:
    if job.status.finished or job.spec.suspend:
        return
    name = job.metadata.name
    raise CommandError(
        f"{name} runs and stays",
        next_step=f"`tj stop {name}{flags}` stops it first, `tj delete {name}{flags}` deletes it as it is",
    )
