"""`tj rm`: remove ended jobs of this machine, or all of their checkpoints but the best; sizes first, then a question.

What is removed is taken under the name's lock, so never from under a running job, and only a folder that holds what a
job leaves there and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.publishing import retire
from trainjob.checkpoint.records import layout
from trainjob.cli.errors import CommandError, for_each
from trainjob.cli.local import find
from trainjob.launch.errors import LaunchError
from trainjob.launch.job import is_s3
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.registry import earlier, output, records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome.stored import TRAINER_FILE
from trainjob.screen import wording
from trainjob_api.contract import CLI_ERROR, CLI_OK, CLI_USAGE

OWN = frozenset((layout.CHECKPOINTS, layout.RUNS, layout.HISTORY, layout.OUTPUT, "code", TRAINER_FILE))
"""What a job's folder may hold."""
_REMOVING = ".removing"
DAY_S = 86400.0


class Planned(NamedTuple):
    """What would go of one job."""

    record: Record
    size: int
    checkpoints: Sequence[inventory.Entry] | None
    """These alone; None: the whole job."""
    runs: Sequence[Record] = ()
    """These earlier runs' records and output alone: the job stays."""
    stays: str | None = None
    """The checkpoint that is kept."""

    @property
    def what(self) -> str:
        """In words."""
        if self.runs:
            return f"records and output of {wording.count(len(self.runs), 'earlier run')}"
        return "the job" if self.checkpoints is None else wording.count(len(self.checkpoints), "checkpoint")

    @property
    def done(self) -> str:
        """What is to be said once it is gone."""
        name, size = self.record.name, wording.size(self.size)
        if self.runs:
            return f"{name}: {self.what} are removed, {size}"
        if self.checkpoints is None:
            return f"{name} is removed, {size}"
        are = "is" if len(self.checkpoints) == 1 else "are"
        return f"{self.what} of {name} {are} removed, {size}" + (f"; {self.stays} stays" if self.stays else "")


def remove(args: argparse.Namespace) -> int:
    """Remove what is named."""
    wanted, planned, code = _planned(args)
    if args.older_than is not None and not args.keep_best:
        planned += _old_runs(time.time() - args.older_than, {each.id for each in wanted})
    planned = [each for each in planned if each.checkpoints is None or each.checkpoints]
    if not planned:
        if code == CLI_OK:
            print("there is nothing to remove", file=sys.stderr)
        return code
    if not args.yes and not _agreed(planned):
        print("nothing was removed", file=sys.stderr)
        return CLI_ERROR
    for each in planned:
        try:
            carry_out(each)
            print(each.done, flush=True)
        except (LaunchError, StoreError, OSError) as error:  # the others still go
            print(f"tj: {each.record.name} stays: {error}", file=sys.stderr)
            code = max(code, CLI_ERROR)
    return code


def _planned(args: argparse.Namespace) -> tuple[list[Record], list[Planned], int]:
    """The jobs that are meant, what would go of those that can go, and the exit code for the others: they were told."""
    _check(args)
    wanted: list[Record] = []
    planned: list[Planned] = []

    def add(record: Record) -> int:
        wanted.append(record)
        planned.append(plan(record, best=args.keep_best))
        return CLI_OK

    if args.names:
        return wanted, planned, for_each(args.names, lambda name: add(find.named(name, args.storage)))
    for record in _old(args.older_than):
        add(record)
    return wanted, planned, CLI_OK


def _check(args: argparse.Namespace) -> None:
    if bool(args.names) == (args.older_than is not None):
        raise CommandError(
            "names and --older-than are two ways to say which jobs: give one of them"
            if args.names
            else "say which jobs: by their names, or by --older-than",
            next_step="tj rm NAME ..., or tj rm --older-than 30d; `tj list -o wide` shows sizes",
            code=CLI_USAGE,
        )


def _old(older_than_s: float) -> list[Record]:
    """The jobs that ended longer ago."""
    before = time.time() - older_than_s
    known = [each for each in records.find_all()[0] if each.state not in (records.RUNNING, records.ENDING)]
    return [each for each in known if (each.ended or each.started) < before and not is_s3(each.folder or "")]


def _old_runs(before: float, going: set[str]) -> list[Planned]:
    """Of the jobs that stay, running ones too: what is remembered of their runs that ended before then."""
    found = []
    for newest in records.find_all()[0]:
        old = (
            [] if newest.id in going else [each for each in earlier.of(newest) if (each.ended or each.started) < before]
        )
        size = sum(_size(piece.path) for each in old for piece in output.of_run(each.output, each.started))
        if old:
            found.append(Planned(newest, size, None, old))
    return found


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # the job's launcher has just compressed it, or removed it
        return 0


def plan(record: Record, *, best: bool) -> Planned:
    """What would go. Raises CommandError for a job that runs, or whose folder holds something else."""
    if record.state in (records.RUNNING, records.ENDING):
        raise CommandError(f"{record.name} runs and stays", next_step=f"`tj stop {record.name}` stops it first")
    folder = record.folder
    if folder is not None and is_s3(folder):
        all_of_it = shlex.join(["aws", "s3", "rm", "--recursive", folder])
        raise CommandError(
            f"{record.name} is stored in {folder}, which is not this machine's",
            next_step=f"`tj checkpoints rm` removes checkpoints there, `{all_of_it}` all of it",
        )
    if folder is None or not os.path.isdir(folder):
        return Planned(record, find.size(records.folder_of(record.id)) or 0, [] if best else None)
    foreign = sorted(set(os.listdir(folder)) - OWN)
    if foreign or os.path.basename(folder) != record.name:
        raise CommandError(
            f"{folder} is no folder of a job alone: it holds {', '.join(foreign) or 'another name'} too; it stays",
            next_step="look at it, and remove by hand what you do not need",
        )
    if not best:
        return Planned(record, find.size(folder) or 0, None)
    store = catalogue.open_store(folder)
    run = catalogue.latest_run(store)
    entries = inventory.look(store)
    of_newest = [entry for entry in entries if run is not None and entry.id.run == run]
    kept = run is not None and inventory.best(of_newest, inventory.read_policy(store, run))
    kept = kept or inventory.latest(entries)
    going = [entry for entry in entries if not kept or entry.id != kept.id]
    size = sum(e.manifest.total_bytes for e in going if e.manifest is not None)
    return Planned(record, size, going, stays=str(kept.id) if kept else None)


def carry_out(planned: Planned) -> None:
    """Under the name's lock. Raises LaunchError when the job was started meanwhile, StoreError, OSError."""
    record, folder = planned.record, planned.record.folder
    for run in planned.runs:
        for piece in output.of_run(run.output, run.started):
            with contextlib.suppress(FileNotFoundError):  # a launcher that begins takes old output away too
                os.unlink(piece.path)
        earlier.forget(run)
    if planned.runs:
        return
    if folder is None or not os.path.isdir(folder):
        records.forget(record)
        return
    with JobLock(folder, wait_s=0):
        if planned.checkpoints is not None:
            store = catalogue.open_store(folder)
            for entry in planned.checkpoints:
                retire.remove(store, entry.id)
            return
        # Out of sight in one step: whoever is cut off leaves no half of a job under its name.
        gone = f"{folder}{_REMOVING}-{os.getpid()}"
        os.rename(folder, gone)
        shutil.rmtree(gone)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(folder))
        records.forget(record)


def _agreed(planned: Sequence[Planned]) -> bool:
    """Ask. Raises CommandError where nobody can answer."""
    total = wording.size(sum(each.size for each in planned))
    for each in planned:
        print(f"  {each.record.name}: {each.what}, {wording.size(each.size)}, {each.record.folder}", file=sys.stderr)
    jobs = wording.count(len(planned), "job")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(
            f"this ({total} of {jobs}) would be removed for good, and there is no terminal to ask on",
            next_step="give --yes to remove without a question",
            code=CLI_USAGE,
        )
    print(f"remove this ({total} of {jobs}) for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
