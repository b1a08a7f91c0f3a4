"""Which job of this machine a command means: by its name in the registry, else by its folder below a storage."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from trainjob.checkpoint.choice import catalogue, inventory
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.launch import job as jobs
from trainjob.launch.local.registry import earlier, output, records
from trainjob.launch.local.registry.records import Record
from trainjob.screen.wording import nearest
from trainjob_api.contract import CLI_NOT_FOUND, CLI_USAGE

if TYPE_CHECKING:
    from trainjob.checkpoint.records.manifest import Manifest
    from trainjob_api.v1alpha1 import TrainJob

NAMESPACE = "default"
"""Of every job of this machine."""
GOES_ON = (records.STOPPED, records.KILLED, "Failed")
"""What ended so that the same command goes on from a checkpoint of an earlier run where this one saved none."""


def find(args: argparse.Namespace) -> Record:
    """The job that `args.name` (and `args.storage`) names. Raises CommandError."""
    return named(args.name, args.storage).as_it_stands


def named(name: str, storage: str | None = None) -> Record:
    """A job by its name or its record's id. A folder without a record (its record is damaged, or older than the
    registry) counts too. Raises CommandError.
    """
    known, damaged = records.find_all()
    wanted = jobs.job_name(name)
    found = [each for each in known if name == each.id or wanted == each.name]
    if storage is not None:
        root = jobs.storage_root(storage)
        found = [each for each in found if each.folder == f"{root}/{NAMESPACE}/{each.name}"]
    if len(found) > 1:
        raise CommandError(
            f"{len(found)} jobs of this machine are called {wanted}",
            next_step=_which(found),
            code=CLI_USAGE,
        )
    if found:
        return found[0]
    folder = f"{jobs.storage_root(storage or jobs.DEFAULT_STORAGE)}/{NAMESPACE}/{wanted}"
    if not jobs.is_s3(folder) and os.path.isdir(folder):
        return Record(name=wanted, namespace=NAMESPACE, folder=folder, output=os.path.join(folder, layout.OUTPUT))
    near = nearest(wanted, [each.name for each in known])
    lost = f"; {len(damaged)} of its records cannot be read (`tj list` names them)" if damaged else ""
    raise CommandError(
        f"there is no job {wanted} on this machine" + (f"; near it: {', '.join(near)}" if near else "") + lost,
        next_step="`tj list` shows this machine's jobs, --storage PATH names where one was stored; "
        "a job of a cluster is meant with -n NAMESPACE or --cluster",
        code=CLI_NOT_FOUND,
    )


def every_run(newest: Record) -> list[Record]:
    """All runs of a name that are remembered, the newest first."""
    return [newest, *earlier.of(newest)]


def run_of(newest: Record, wanted: int | str | None) -> Record:
    """The record of the run that `--run` names; None: the newest. Raises CommandError."""
    if wanted is None:
        return newest
    known = every_run(newest)
    found = next((each for each in known if str(wanted) in (earlier.name_of(each), output.stamp(each.started))), None)
    if found is not None:
        return found
    raise CommandError(
        f"no run {wanted} of {newest.name} is remembered",
        next_step="of these: " + ", ".join(earlier.name_of(each) for each in known),
        code=CLI_NOT_FOUND,
    )


def is_gone(record: Record) -> bool:
    """Whether the folder of a job that is over is not there: removed, or on a volume that is not mounted."""
    folder = record.folder
    return folder is not None and not jobs.is_s3(folder) and not record.lives and not os.path.isdir(folder)


def check_stored(record: Record) -> None:
    """Raises CommandError where what the job stored is not there."""
    if not is_gone(record):
        return
    raise CommandError(
        f"{record.name} was stored in {record.folder}, which is not there now: it was removed, or its volume is not "
        "mounted on this machine",
        next_step=f"mount it, then {AGAIN}; or `tj rm {record.name}` removes what is left of the job",
        code=CLI_NOT_FOUND,
    )


def job_of(record: Record) -> TrainJob | None:
    """The TrainJob of a record; None where there is none, or another version wrote it."""
    from pydantic import ValidationError

    from trainjob_api.v1alpha1 import TrainJob

    try:
        return TrainJob.model_validate(dict(record.job)) if record.job else None
    except ValidationError:
        return None


def newest_checkpoint(record: Record, job: TrainJob | None) -> str | None:
    """Its id. Of a job that was stopped, or whose launcher was killed, as storage has it: its workers stored what they
    held after its status was written last.
    """
    told, stored = job.status.checkpoint.latest if job is not None else None, stored_last(record)
    return str(stored.id) if stored is not None else None if told is None else told.id


def stored_last(record: Record) -> Manifest | None:
    """The newest checkpoint of a job that did not complete, or of which nobody wrote that it did, where that is in a
    folder of this machine: its workers stored what they held after the last word that its record has.
    """
    if (record.state not in GOES_ON and not ended_unsaid(record)) or record.folder is None:
        return None
    if not os.path.isdir(record.folder):
        return None
    try:
        stored = catalogue.list_checkpoints(catalogue.open_store(record.folder), record.number)
    except StoreError:
        return None
    return stored[-1] if stored and not _is_anothers(record, stored[-1].id.run) else None


def ended_unsaid(record: Record) -> bool:
    """Whether it is over, and its launcher did not come to write that."""
    return record.ended is None and record.state in (records.KILLED, "Complete", "Failed")


def step_of(record: Record, job: TrainJob | None) -> int | None:
    """How far it came: as it reported last, or as its newest checkpoint says, which the workers of a launcher that was
    killed stored after its last word.
    """
    told, stored = None if job is None else job.status.progress.step, stored_last(record)
    steps = [step for step in (told, None if stored is None else stored.note.step) if step is not None]
    return max(steps, default=None)


def last_sign(record: Record, job: TrainJob | None) -> float | None:
    """When a job of which nobody wrote when it ended is known to have trained last: its launcher was killed."""
    if not ended_unsaid(record):
        return None
    reported, stored = None if job is None else job.status.progress.last_report_time, stored_last(record)
    known = [
        *([] if reported is None else [reported.timestamp()]),
        *([] if stored is None else [stored.note.time]),
    ]
    return max((at for at in known if at >= record.started), default=None)


def _is_anothers(record: Record, run: int) -> bool:
    """Whether a checkpoint of run `run` is none of this record's. A run that never came to storage has no number."""
    if record.number is not None:
        return run != record.number
    return run in {each.number for each in earlier.of(record)}


def size(folder: str | None) -> int | None:
    """Bytes below a job's folder; None where that is no folder of this machine."""
    if folder is None or not os.path.isdir(folder):
        return None
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(above, name)).st_size
            except OSError:  # it is just being removed
                continue
    return total


def _which(found: list[Record]) -> str:
    """How one of several is named: a job without storage by the id of its record."""
    roots = [each.folder.rsplit("/", 2)[0] for each in found if each.folder is not None]
    ids = [each.id for each in found if each.folder is None]
    ways = [*(["--storage: " + ", ".join(roots)] if roots else []), *(["id: " + ", ".join(ids)] if ids else [])]
    return "say which by " + "; or by ".join(ways)


class Start(NamedTuple):
    """What the same command resumes from, or would if there were more to do."""

    id: str
    step: int | None
    earlier: bool
    """Not this run's: it saved nothing new."""


def next_start(record: Record, job: TrainJob | None) -> Start | None:
    """Of the newest run, where it did not complete; None: it starts from the beginning. As storage has it where that is
    a folder of this machine, else as far as the record tells.
    """
    if record.is_stored_as_complete:  # its launcher was told to stop, or killed, as that was written
        return None
    status = None if job is None else job.status
    if status is not None and (told := status.checkpoint.latest) is not None:
        return Start(told.id, told.step, earlier=False)
    if record.folder is not None and os.path.isdir(record.folder):
        with contextlib.suppress(StoreError):
            found = catalogue.next_start(catalogue.open_store(record.folder))
            if found is None:
                return None
            id_ = found.manifest.id
            earlier_one = found.earlier or _is_anothers(record, id_.run)
            return Start(str(id_), found.manifest.note.step, earlier_one)
    before = status.attempt.resumed_from if status is not None and status.attempt is not None else None
    return None if before is None else Start(before, None, earlier=True)


def stands(record: Record, job: TrainJob | None) -> Start | None:
    """Of the newest run: what there is of its training now that it is over, its own or from before."""
    if record.state in GOES_ON:
        return next_start(record, job)
    return _began_with(record, job) if record.state == "Complete" and not saved(record, job) else None


def _began_with(record: Record, job: TrainJob | None) -> Start | None:
    """What a run that completed with nothing left to do had resumed from, where that is in its own folder."""
    attempt = None if job is None else job.status.attempt
    if attempt is None or attempt.resumed_from is None or record.number is None:
        return None
    if record.folder is None or not os.path.isdir(record.folder):
        return None
    store = catalogue.open_store(record.folder)
    try:
        found = inventory.origin(store, record.number)
    except StoreError:
        return None
    if found is None or found.uri != catalogue.checkpoint_uri(store, found.manifest.id):
        return None
    return Start(str(found.manifest.id), found.manifest.note.step, earlier=True)


def continuing(start: Start | None) -> str:
    """What the same command does with a job that did not end by itself, in words."""
    if start is None:
        return "starts it again"
    return f"resumes from checkpoint {start.id}" if start.earlier else "resumes from its newest checkpoint"


def saved(record: Record, job: TrainJob | None) -> bool:
    """Whether it has a checkpoint, as far as this machine knows."""
    return newest_checkpoint(record, job) is not None
