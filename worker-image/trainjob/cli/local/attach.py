"""`tj attach`: show a job that runs in the background, or in another terminal, as `tj run` shows it."""

from __future__ import annotations

import argparse

from trainjob.cli.local import find, listing
from trainjob.cli.local.follow import follow
from trainjob.launch.local.registry import output, records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome import last_good
from trainjob.screen import changes, failure, streams, wording
from trainjob.screen import display as displays
from trainjob.screen.asked import shown_here
from trainjob_api.contract import CLI_ERROR, CLI_INTERRUPTED, CLI_JOB_FAILED, CLI_OK, CLI_STOPPED


def attach(args: argparse.Namespace) -> int:
    """Show it until it ends; the job's exit code. Of one that has ended only how."""
    return show(find.find(args), plain=args.plain, lines=True)


def show(record: Record, *, plain: bool, lines: bool) -> int:
    """`lines`: its ranks' too, from the start on."""
    if record.state not in (records.RUNNING, records.ENDING):
        return conclude(record)
    display = displays.choose(plain=plain)

    def on_job(found: Record) -> None:
        job = find.job_of(found)
        if job is not None:
            display.status(shown_here(job))

    def on_line(_attempt: int, line: str) -> None:
        if lines:
            display.line(line)

    started = output.stamp(record.started) if record.started else None
    try:
        record = follow(record, started, on_job, on_line)
    except KeyboardInterrupt:
        display.close()
        name = record.name
        streams.say(f"{name} continues", f"next: `tj attach {name}` shows it again, `tj stop {name}` stops it")
        return CLI_INTERRUPTED
    finally:
        display.close()
    job = find.job_of(record)
    return conclude(record, shown=None if job is None else displays.has_shown(display, job))


def conclude(record: Record, *, shown: int | None = None) -> int:
    """Say how it ended, on standard error, and return the exit code. `shown`: as for `explain`."""
    job, state = find.job_of(record), record.state
    if state == "Complete" and job is not None:
        ended = record.ended or find.last_sign(record, job)
        lines, code = changes.completed(job, None if ended is None else ended - record.started), CLI_OK
        if find.ended_unsaid(record):  # what its record has is from before
            newest = find.newest_checkpoint(record, job)
            lines = [lines[0], *([] if newest is None else [f"  checkpoint {newest} is saved"])]
    elif state == "Failed" and job is not None:
        again = failure.Retry(
            command=listing.again(record),
            script=listing.again(record),
            storage=record.folder or "the storage path",
            name=record.name,
            asker=listing.asker(record),
        )
        lines, code = failure.explain(job, again, shown=shown), CLI_JOB_FAILED
    else:
        took = f" after {wording.duration(record.ended - record.started)}" if record.ended else ""
        how = {records.STOPPED: f"was stopped{took}", records.KILLED: "ended with its launcher, which was killed"}
        lines = [
            f"{record.name} {how.get(state, f'is {state}')}",
            f"next: `{listing.again(record)}` {find.continuing(find.next_start(record, job))}",
        ]
        code = CLI_STOPPED if state == records.STOPPED else CLI_ERROR
    if job is not None:
        lines += last_good.lines(job, None if find.is_gone(record) else record.folder, listing.command(record))
    streams.say(*lines)
    return code
