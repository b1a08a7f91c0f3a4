"""`tj stack` of a cluster's job: rank 0's agent asks all ranks where they are, and status brings the answer."""

from __future__ import annotations

import argparse
import time
import uuid
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect
from trainjob.cli.errors import CommandError
from trainjob_api import defaults
from trainjob_api.contract import ANNOTATION_STACKS, CLI_ERROR, CLI_OK

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

WAIT_S = 30.0
"""The agents take two seconds, and an operator that has much to do its time."""
POLL_S = 0.5


def stack(args: argparse.Namespace) -> int:
    """Ask, wait for the answer, and print it."""
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    request, deadline = uuid.uuid4().hex, time.monotonic() + WAIT_S
    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
        _refuse(job, args.name, place.flags)
        job = jobs_api.read(jobs_api.ask_stacks(place.api, place.namespace, args.name, request))
        while (answer := _answer(job, request)) is None:
            _refuse(job, args.name, place.flags)
            if time.monotonic() >= deadline:
                raise CommandError(
                    f"no answer came from {args.name} within {WAIT_S:.0f} s",
                    next_step=f"`tj doctor{place.flags}` looks at the operator; `tj status {args.name}{place.flags}` "
                    "shows how the job stands",
                    code=CLI_ERROR,
                )
            time.sleep(POLL_S)
            job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
    print(answer)
    return CLI_OK


def _answer(job: TrainJob, request: str) -> str | None:
    """Of several who ask at once the last one's question counts, and its answer is everybody's."""
    found, newest = job.status.stacks, job.metadata.annotations.get(ANNOTATION_STACKS)
    return found.stacks if found is not None and found.request in (request, newest) else None


def _refuse(job: TrainJob, name: str, flags: str) -> None:
    """Of a job whose ranks nobody can ask."""
    if not defaults.uses_agent(job.spec):
        raise CommandError(
            f"{name} runs without the agent (runtime.agent: Disabled): nobody can ask its ranks",
            next_step=f"`tj logs {name}{flags}` shows what they said",
            code=CLI_ERROR,
        )
    attempt = job.status.attempt
    if attempt is None or attempt.state != "Running" or attempt.running_at is None:
        raise CommandError(
            f"no rank of {name} runs: it is {(job.status.phase or 'new')}",
            next_step=f"`tj status {name}{flags}` shows what it waits for",
            code=CLI_ERROR,
        )
