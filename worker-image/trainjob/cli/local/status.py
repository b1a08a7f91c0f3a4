"""`tj status` of a job of this machine: everything about it on one screen."""

from __future__ import annotations

import argparse
import json
import sys
import time

from trainjob.cli.errors import CommandError
from trainjob.cli.local import attach, find, listing, rank_processes, runs
from trainjob.launch.local.registry import earlier, output, presence, records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome import last_good
from trainjob.screen import attempts, changes, clock, failure, pace, table, wording
from trainjob.screen.panel import Moment, panel
from trainjob_api import contract
from trainjob_api.contract import CLI_OK, CLI_USAGE
from trainjob_api.v1alpha1 import TrainJob

_OTHERS = 5


def status(args: argparse.Namespace) -> int:
    """Print it; with --watch until the job ends."""
    newest = find.find(args)
    record = find.run_of(newest, args.run)
    if args.watch:
        if record is not newest:
            raise CommandError(f"run {args.run} is over", next_step="leave out --watch", code=CLI_USAGE)
        return attach.show(record, plain=args.plain, lines=False)
    if args.output == "json":
        job = find.job_of(record)
        there = rank_processes.of(record, job) if job is not None and record.state == records.RUNNING else []
        told = {"run": record.number, "runs": [earlier.name_of(each) for each in find.every_run(newest)]}
        ranks = {"ranks": [each.as_json for each in there]}
        print(json.dumps({**listing.as_json(record), **told, **ranks}, indent=2))
        return CLI_OK
    _show(newest, record)
    return CLI_OK


def _show(newest: Record, record: Record) -> None:
    """The screen of one run."""
    state, word = record.state, record.shown_state
    of = "" if record is newest else f"   run {earlier.name_of(record)}"
    print(f"{record.name}{of}   on this machine   {word}")
    job, now = find.job_of(record), time.time()
    sign = find.last_sign(record, job)
    stored = runs.checkpoint(record, job, is_newest=record is newest)
    start = find.stands(record, job) if record is newest else None
    told = job.status.checkpoint.latest if job is not None else None
    at_the_end = stored is not None and (told is None or told.id != stored)
    if job is not None:
        unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        took = (record.ended or sign or now) - record.started
        phase = None if word in (records.RUNNING, job.status.phase) else word
        moment = Moment(now=now, started=now - took, ascii_only=not unicode, asked=True, phase=phase)
        running = now if state == records.RUNNING else None
        goodput = clock.goodput(job.status, running, killed=find.ended_unsaid(record))
        shown = _as_stored(job, find.step_of(record, job)) if at_the_end else job
        lines = (*panel(shown, pace.Pace.told(job.status), moment), *goodput, *clock.forks(job.status))
        print(*(f"  {line}" for line in lines), sep="\n")
    print()
    facts = _facts(newest, record, start, stored if at_the_end else None)
    print(*(f"  {name:<9} {value}" for name, value in facts), sep="\n")
    if job is not None and state == records.RUNNING and (there := rank_processes.of(record, job)):
        print()
        table.show(rank_processes.HEADER, [each.row for each in there])
    last = attempts.RUNS if state == records.RUNNING else state
    if job is not None and (
        rows := attempts.lines(job.status, now, last=last, here=True, width=table.width(), until=sign)
    ):
        print()
        print(*rows, sep="\n")
    print()
    print(*(advice(record, job, word, start) if record is newest else _of_an_earlier(record, job)), sep="\n")
    if job is not None and state not in (records.RUNNING, records.ENDING):
        for line in last_good.lines(job, None if find.is_gone(record) else record.folder, listing.command(record)):
            print(line.replace("  ", "      ", 1))


def _facts(newest: Record, record: Record, start: find.Start | None, at_the_end: str | None) -> list[tuple[str, str]]:
    """How it was started and where its things are. `start`: what there is to go on from; `at_the_end`: the
    checkpoint of which its status does not know.
    """
    state = record.state
    storage = f"{record.folder}{_absence(record)}" if record.folder else "none"
    facts = [("command", listing.command(record)), ("folder", record.cwd), ("storage", storage)]
    if at_the_end is not None:
        manifest = find.stored_last(record)
        at = "" if manifest is None or manifest.note.step is None else f" at step {manifest.note.step}"
        facts.append(("newest", f"checkpoint {at_the_end}{at}, stored by the workers as they ended"))
    elif start is not None and start.earlier:
        at = "" if start.step is None else f", at step {start.step}"
        facts.append(("saved", f"{wording.from_before(start.id)}{at}"))
    if state == records.RUNNING:
        facts.append(("launcher", f"pid {record.pid}"))
    kept = output.pieces(record.output) if record is newest else output.of_run(record.output, record.started)
    facts.append(("output", record.output if kept else "nothing kept"))
    bytes_ = find.size(record.folder)
    if bytes_ is not None:
        facts.append(("size", wording.size(bytes_) + ("" if record is newest else ", all runs")))
    others = [each for each in find.every_run(newest) if each.started != record.started]
    if others:
        which = ", ".join(f"{earlier.name_of(each)} {each.state}" for each in others[:_OTHERS])
        more = f" and {len(others) - _OTHERS} more" if len(others) > _OTHERS else ""
        facts.append(("run", f"{earlier.name_of(record)}; others: {which}{more} (`tj history {record.name}`)"))
    return [(name, value) for name, value in facts if value]


def _absence(record: Record) -> str:
    """Of the folder in which it stored."""
    if find.is_gone(record):
        return "  (not there now: it was removed, or its volume is not mounted)"
    if record.storage_gone is None:
        return ""
    since = presence.clock(record.storage_gone)
    return f"  (gone since {since}: it was removed, or its volume was unmounted; here is what was saved since, if any)"


def _of_an_earlier(record: Record, job: TrainJob | None) -> list[str]:
    name, run = record.name, earlier.name_of(record)
    last = None if job is None or record.state != "Failed" else job.status.last_failure
    where = None if job is None else job.status.condition("Failed")
    # What is to be mended stands first; that the newest run's command starts again then is that run's.
    again = _retry(record, of_an_earlier=True)
    said = [] if last is None else failure.next_steps(where.reason if where else last.reason, last, again)[:1]
    stored = runs.checkpoint(record, job, is_newest=False)
    typed = None if stored is None else last_good.resuming(listing.command(record), f"{name}/{stored}")
    return [
        *said,
        f"{'      ' if said else 'next: '}`tj logs {name} --run {run}` has its ranks' lines, "
        f"`tj history {name} --run {run}` its reports",
        *([f"      `{typed}` trains on from its newest checkpoint"] if typed and not find.is_gone(record) else []),
        f"      `tj status {name}` shows the newest run",
    ]


def _retry(record: Record, *, of_an_earlier: bool = False) -> failure.Retry:
    """How to run it again."""
    again = listing.again(record) or f"the command with --name {record.name}"
    return failure.Retry(
        command=again,
        script=again,
        storage=record.folder or "the storage path",
        name=record.name,
        asker=listing.asker(record),
        logs=f"tj logs {record.name}" + (f" --run {earlier.name_of(record)}" if of_an_earlier else ""),
    )


def _as_stored(job: TrainJob, step: int | None) -> TrainJob:
    """It came as far as its newest checkpoint. The status does not know that one: without the status's own, as two on
    one screen would be a riddle.
    """
    checkpoint = job.status.checkpoint.model_copy(update={"latest": None})
    progress = job.status.progress
    if step is not None and step != progress.step:
        of = progress.total_steps
        percent = min(100, step * 100 // of) if of else None
        progress = progress.model_copy(update={"step": step, "percent": percent})
    return job.model_copy(
        update={"status": job.status.model_copy(update={"checkpoint": checkpoint, "progress": progress})}
    )


def advice(record: Record, job: TrainJob | None, state: str, start: find.Start | None) -> list[str]:
    """What to type next in this state. `start`: what there is to go on from."""
    name = record.name
    again = listing.again(record) or f"the command with --name {name}"
    if state in (records.RUNNING, records.RESTARTING):
        still = job is not None and pace.stands_still(job.status, time.time())
        look = f"`tj stack {name}` shows where its ranks are, " if still else ""
        return [
            f"next: {look}`tj attach {name}` shows it, `tj logs {name} -f` its ranks' lines, `tj stop {name}` stops it"
        ]
    if state == records.STOPPING:
        return ["its ranks end and what they saved is stored; `tj stop` and Ctrl-C have told it to stop"]
    if state == records.ENDING:
        return ["its launcher is gone; its workers store what they hold and end by themselves"]
    if state == "Complete":
        if find.is_gone(record):
            return [f"next: `{again}` starts it again, `tj rm {name}` forgets it"]
        if not find.saved(record, job) and start is None:
            return [f"next: `tj history {name}` has its metrics, `{again}` starts it again"]
        said = f"next: `tj model get {name} -o DIR` brings its model, `tj history {name}` has its metrics"
        became_nan = job is not None and job.status.progress.non_finite is not None
        return [said if became_nan else f"{said}, `--resume-from {name}` trains on from it"]
    if state == "Failed" and job is not None and job.status.last_failure is not None:
        where = job.status.condition("Failed")
        reason = where.reason if where else job.status.last_failure.reason
        return [
            *failure.next_steps(reason, job.status.last_failure, _retry(record), resumes=start is not None),
            f"      `tj logs {name}` has its ranks' lines",
        ]
    on = f"`{again}` {find.continuing(start)}, `tj logs {name}` has its ranks' lines"
    if job is not None and changes.unstored(job.status) is not None:
        return [failure.next_steps(contract.REASON_STORAGE, None, _retry(record))[0], f"      then {on}"]
    return [f"next: {on}"]
