"""`tj history`: why the attempts of a job of this machine ended, and what it has reported, each report once."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.reading import runs
from trainjob.cli.errors import CommandError
from trainjob.cli.local import find
from trainjob.cli.local import runs as runs_of_name
from trainjob.launch.local.registry import earlier, records
from trainjob.screen import attempts, clock, table, wording
from trainjob.screen.asked import shown_here
from trainjob_api.contract import CLI_NOT_FOUND, CLI_OK

if TYPE_CHECKING:
    from trainjob.checkpoint.stores.store import Store
    from trainjob.launch.local.registry.records import Record
    from trainjob_api.v1alpha1 import TrainJob


def history(args: argparse.Namespace) -> int:
    """Print its runs, the attempts of the newest or of `--run`, then that one's reports, or those of `--all`."""
    newest = find.find(args)
    record = _run_of(newest, args.run)
    told = _told_of_attempts(newest, record, args)
    for line in told:
        print(line)
    record = record or newest
    if record.folder is None:
        said = f"{record.name} had no storage, and its reports are gone with it"
        return _without_reports(said, f"`tj logs {record.name}` shows what its ranks wrote", told)
    if find.is_gone(record):
        said = (
            f"{record.folder} is not there now, and the reports with it: it was removed, or its volume is not mounted"
        )
        return _without_reports(said, f"`tj status {record.name}` has the last metrics", told)
    with _told(record.name):
        rows, of = _reports(record, args.run, every=args.all)
    if args.tail is not None:
        rows = rows[-args.tail :] if args.tail else []
    if args.output == "json":
        for row in rows:
            print(json.dumps(_for_json(row)))
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in inventory.flat(row["metrics"])))
        header = (*(["RUN"] if args.all else []), "REPORT", "STEP", "EPOCH", "AT", "CHECKPOINT", *names)
        table.show(header, [_cells(row, names, of_run=args.all) for row in rows])
    else:
        print(f"{record.name} has reported nothing{of}")
    return CLI_OK


def _run_of(newest: Record, wanted: int | str | None) -> Record | None:
    """Its record; None for a run of which storage alone knows. Raises CommandError for one that there never was."""
    known = find.every_run(newest)
    stored = wanted is None or isinstance(wanted, str) or newest.folder is None or find.is_gone(newest)
    if stored or wanted in [each.number for each in known]:
        return find.run_of(newest, wanted)
    assert newest.folder is not None and isinstance(wanted, int)
    _check_run(newest, newest.folder, wanted)
    return None


def _told_of_attempts(newest: Record, record: Record | None, args: argparse.Namespace) -> list[str]:
    """What stands above the reports: the runs where there were several, the attempts of one of them."""
    job = find.job_of(record) if record is not None else None
    if args.output == "json":
        known = find.every_run(newest)
        chosen = [] if record is None or len(known) == 1 else known if args.run is None else [record]
        rows = runs_of_name.as_json(newest, chosen)
        return [json.dumps(row) for row in [*rows, *(clock.as_json(job.status) if job is not None else ())]]
    listed = runs_of_name.lines(newest, time.time()) if args.run is None else []
    text = _attempts(record, job, with_parts=args.parts) if record is not None and job is not None else []
    of = [runs_of_name.opening(record)] if record is not None and record.started and (listed or args.run) else []
    return [*listed, *([""] if listed else []), *of, *text, *([""] if of or text else [])]


def _attempts(record: Record, job: TrainJob, *, with_parts: bool) -> list[str]:
    """The first view; with the parts of each start below it."""
    state = record.state
    last = attempts.RUNS if state == records.RUNNING else state
    now = time.time()
    sign, killed = find.last_sign(record, job), find.ended_unsaid(record)
    told = attempts.lines(job.status, now, last=last, here=True, width=table.width(), until=sign)
    running = now if state == records.RUNNING else None
    more = (
        clock.lines(shown_here(job).status, running)
        if with_parts
        else clock.goodput(job.status, running, killed=killed)
    )
    return [*told, *([""] if told and more else []), *more]


def _reports(record: Record, wanted: int | str | None, *, every: bool) -> tuple[list[dict[str, Any]], str]:
    """The rows to show, with `run` in them where they are of every run; and of what they are, in words."""
    assert record.folder is not None
    store = catalogue.open_store(record.folder)
    if every:
        found = [{**row, "run": k} for k in runs.numbers(store) for row in _of_run(store, k)]
        return found, ""
    run = wanted if isinstance(wanted, int) else record.number
    if run is None and wanted is None and not earlier.of(record):  # of a record that does not say
        run = catalogue.latest_run(store)
    return ([], "") if run is None else (_of_run(store, run), f" in run {run}")


def _of_run(store: Store, run: int) -> list[dict[str, Any]]:
    return [row for row in catalogue.history(store, run) if row.get("kind") == "report"]


def _check_run(newest: Record, folder: str, run: int) -> None:
    """Raises CommandError for one that there never was."""
    with _told(newest.name):
        found = runs.numbers(catalogue.open_store(folder))
    if run not in found:
        there = [*map(str, found), *(earlier.name_of(each) for each in find.every_run(newest) if each.number is None)]
        raise CommandError(
            f"{newest.name} has no run {run}",
            next_step="of these: " + ", ".join(there) if there else f"`tj status {newest.name}`",
            code=CLI_NOT_FOUND,
        )


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise CommandError(str(error), next_step=f"`tj status {name}` shows where it stores") from None


def _without_reports(said: str, next_step: str, told: Sequence[str]) -> int:
    """Of a job whose reports are not there: its attempts are an answer. Raises CommandError where there were none."""
    if not told:
        raise CommandError(said, next_step=next_step, code=CLI_NOT_FOUND)
    sys.stdout.flush()
    print(f"tj  | {said}; {next_step}", file=sys.stderr)
    return CLI_OK


def _cells(row: dict[str, Any], names: list[str], *, of_run: bool) -> list[str]:
    metrics = inventory.flat(row["metrics"])
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time"])) if row.get("time") else ""
    first = [str(row["run"])] if of_run else []
    first += [str(row.get("position", "")), _text(row.get("step")), _text(row.get("epoch")), at]
    return [*first, str(row.get("checkpoint") or ""), *(_text(metrics.get(name)) for name in names)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return wording.number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _for_json(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {name: _for_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_for_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
