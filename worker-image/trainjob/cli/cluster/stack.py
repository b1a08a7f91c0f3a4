"""`tj stack` of a cluster's job: rank 0's agent asks all ranks where they are, and status brings the answer."""

from __future__ import annotations

import argparse
import time
import uuid
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect
from trainjob.cli.errors import CommandError
from trainjob.launch.errors import ConfigError
from trainjob.launch.outcome import log_choice
from trainjob_api import defaults
from trainjob_api.contract import (
    ANNOTATION_STACKS,
    CLI_ERROR,
    CLI_NOT_FOUND,
    CLI_OK,
    CLI_USAGE,
    STACKS_OF,
    STACKS_REQUEST_LIMIT,
)

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

WAIT_S = 30.0
"""The agents take two seconds, and an operator that has much to do its time."""
POLL_S = 0.5
_ID = 16
"""Characters of a question that tell it from others; the rest has room for ranks."""


def stack(args: argparse.Namespace) -> int:
    """Ask, wait for the answer, and print it; with --rank all threads of these."""
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    deadline = time.monotonic() + WAIT_S
    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
        _refuse(job, args.name, place.flags)
        request = _request(job, args.rank, f"{args.name}{place.flags}")
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
            if _is_answered(job) and _of(job) != _ranks(request):
                # Somebody else asked for other ranks meanwhile, and has the answer: now it is our turn again.
                job = jobs_api.read(jobs_api.ask_stacks(place.api, place.namespace, args.name, request))
    print(answer)
    return CLI_OK


def _request(job: TrainJob, wanted: str | None, whose: str) -> str:
    """A new question: for where all ranks are together, or for all threads of those that are wanted. Raises
    CommandError.
    """
    own = uuid.uuid4().hex[:_ID]
    if not wanted:
        return own
    see = f"`tj status {whose}` says how many ranks there are"
    try:
        selection = log_choice.parse(wanted)
    except ConfigError as error:
        raise CommandError(str(error), next_step=see, code=CLI_USAGE) from None
    total = log_choice.world_size(job)
    if not any(rank in selection for rank in range(total)):
        raise CommandError(f"no such rank of {job.metadata.name}: it has {total}", next_step=see, code=CLI_NOT_FOUND)
    ranks = "".join((f"0-{total - 1}" if selection.ranks is None else wanted).split())
    if len(ranks) > STACKS_REQUEST_LIMIT - _ID - len(STACKS_OF):
        raise CommandError(
            f"--rank {wanted} is too long for one question", next_step="ask for fewer ranks at a time", code=CLI_USAGE
        )
    return f"{own}{STACKS_OF}{ranks}"


def _answer(job: TrainJob, request: str) -> str | None:
    """Of several who ask the same at once the last one's question counts, and its answer is everybody's."""
    found = job.status.stacks
    if found is None or not (found.request == request or (_is_answered(job) and _of(job) == _ranks(request))):
        return None
    return found.stacks


def _is_answered(job: TrainJob) -> bool:
    """The newest question, whoever asked it."""
    found, newest = job.status.stacks, job.metadata.annotations.get(ANNOTATION_STACKS)
    return found is not None and found.request == newest


def _of(job: TrainJob) -> str:
    return _ranks(job.metadata.annotations.get(ANNOTATION_STACKS) or "")


def _ranks(request: str) -> str:
    return request.partition(STACKS_OF)[2]


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
