"""`tj wait`: until a job is in a state; the exit code says whether it came to it."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, this_machine
from trainjob.cli.errors import CommandError
from trainjob.launch.cluster import follow
from trainjob.screen import failure, streams, wording
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob


def wait(args: argparse.Namespace) -> int:
    """0 when the state came; see the table of exit codes for the rest."""
    this_machine.refuse(args, "wait")
    place = connect.connect(args)
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    wanted = follow.Wanted(namespace=place.namespace, name=args.name)
    job: TrainJob | None = None
    try:
        with connect.refusals():
            for update in follow.follow(place.api, wanted, until=lambda job: reached(job, args.awaited)):
                job = update.job or job
                code = verdict(update, args.awaited)
                if code is not None:
                    streams.say(said(args.name, update, code))
                    return code
                if deadline is not None and time.monotonic() >= deadline:
                    raise _timed_out(args, place, job)
    except CommandError as error:
        if args.awaited == "deleted" and error.code == contract.CLI_NOT_FOUND:
            return contract.CLI_OK
        raise
    raise AssertionError("a job that is followed ends by an update")


def reached(job: TrainJob, awaited: str) -> bool:
    """Whether the job is in that state."""
    status = job.status
    if awaited == "running":
        # A job that has completed has run.
        return status.holds("Complete") or (status.phase == "Running" and status.attempt is not None)
    return {
        "complete": status.holds("Complete"),
        "failed": status.holds("Failed"),
        "suspended": status.holds("Suspended") and not status.finished,
    }.get(awaited, False)


def verdict(update: follow.Update, awaited: str) -> int | None:
    """The exit code; None: wait on."""
    if update.kind == "gone":
        return contract.CLI_OK if awaited == "deleted" else contract.CLI_STOPPED
    if update.job is None:
        return None
    if reached(update.job, awaited):
        return contract.CLI_OK
    if awaited == "deleted":
        return None
    if update.job.status.finished:
        return contract.CLI_JOB_FAILED if update.job.status.holds("Failed") else contract.CLI_ERROR
    return contract.CLI_STOPPED if update.cancelled and awaited != "suspended" else None


def said(name: str, update: follow.Update, code: int) -> str:
    """One line about how it went."""
    if update.kind == "gone":
        return f"{name} was deleted"
    job = update.job
    assert job is not None
    first = job.status.last_failure
    if job.status.holds("Failed") and first is not None:
        return f"{name} is Failed; first cause: {failure.headline(first)}"
    if code == contract.CLI_STOPPED:
        return f"{name} was cancelled"
    return f"{name} is {job.status.phase or 'New'}"


def _timed_out(args: argparse.Namespace, place: connect.Place, job: TrainJob | None) -> CommandError:
    state = "unknown" if job is None else job.status.phase or "New"
    return CommandError(
        f"{args.name} is {state} after {wording.duration(args.timeout)}, not {args.awaited}",
        next_step=f"`tj status {args.name}{place.flags}` shows what it waits for",
        code=contract.CLI_TIMEOUT,
    )
