"""`tj list` of this machine: one line a job, the newest start first."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence

from trainjob.cli.errors import CommandError
from trainjob.cli.local import find
from trainjob.launch.local.kept import note
from trainjob.launch.local.kept.note import Note
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.records import Record
from trainjob.screen import changes, table, wording
from trainjob.screen.asked import Asker
from trainjob_api.contract import CLI_OK, CLI_USAGE

HEADER = ("NAME", "STATUS", "RUN", "STEP", "CHECKPOINT", "STARTED", "TOOK", "STORED IN")
WIDE = ("SIZE", "METRIC", "COMMAND")
_TROUBLE_LIMIT = 60
"""Characters; `tj status` has the whole sentence."""


def listing(args: argparse.Namespace) -> int:
    """Print the jobs."""
    check_states(args.status or (), records.STATES)
    known, damaged = records.find_all()
    every, heads = len(known), {(each.id, each.started) for each in known}
    if args.runs:
        known = sorted((run for each in known for run in find.every_run(each)), key=lambda run: -run.started)
    if args.status:
        known = [each for each in known if each.shown_state.lower() in args.status]
    if args.output == "json":
        print(json.dumps([as_json(each) for each in known], indent=2))
    elif args.output == "name":
        print(*(each.name for each in known), sep="\n", end="\n" if known else "")
    elif known:
        wide, now = args.output == "wide", time.time()
        rows = [row(each, wide=wide, now=now, newest=(each.id, each.started) in heads) for each in known]
        told = [_trouble(each, now) for each in known]
        if any(told):
            rows = [[*cells, said] for cells, said in zip(rows, told, strict=True)]
        table.show((*HEADER, *(WIDE if wide else ()), *(["WARNING"] if any(told) else [])), rows)
    elif every:
        print(f"no job of this machine is {' or '.join(args.status)} (of all {every}: tj list)")
    else:
        print("no job ran on this machine yet (a cluster's jobs: tj list -n NAMESPACE, -A or --cluster)")
    kept = note.find()
    if kept is not None and args.output != "name":
        print(f"tj  | {warm(kept)}", file=sys.stderr)
    for each in damaged:
        print(
            f"tj  | a record cannot be read and is left out: {each.path}: {each.why}. The job's data are where they "
            "were; without the file, or at its next run, the job is listed again",
            file=sys.stderr,
        )
    return CLI_OK


def check_states(asked: Sequence[str], states: Sequence[str]) -> None:
    """Of `--status`. Raises CommandError for a word that no job ever shows."""
    words = [each.lower() for each in states]
    for word in asked:
        if word not in words:
            near = wording.nearest(word, words, 1)
            raise CommandError(
                f"there is no state {word}" + (f"; did you mean {near[0]}?" if near else ""),
                next_step=f"a job is {', '.join(states[:-1])} or {states[-1]}",
                code=CLI_USAGE,
            )


def warm(kept: Note) -> str:
    """What `tj run --keep-warm` has left."""
    until = time.strftime("%H:%M", time.localtime(kept.until))
    return (
        f"process {kept.pid} is kept warm for the next `tj run` in {kept.working_dir} until {until}; `tj stop --warm` "
        "ends it"
    )


def as_json(record: Record) -> dict[str, object]:
    """A record for programs."""
    record = record.as_it_stands
    return {"id": record.id, "status": record.shown_state, **vars(record)}


def row(record: Record, *, wide: bool, now: float, newest: bool = True) -> list[str]:
    """The cells of a job, or of a run that is not its newest."""
    record = record.as_it_stands
    job = find.job_of(record)
    progress = job.status.progress if job else None
    total = progress.total_steps if progress else None
    # One of before that never came to storage has stored nothing: what is there is the next one's.
    stores = newest or record.number is not None
    step = find.step_of(record, job) if stores else progress.step if progress else None
    state, saved = record.state, find.newest_checkpoint(record, job) if stores else None
    if newest and saved is None and (start := find.stands(record, job)) is not None:
        saved, step = start.id, start.step if step is None else step
    over = record.ended or (now if state == records.RUNNING else find.last_sign(record, job))
    cells = [
        record.name,
        record.shown_state,
        "" if record.number is None else str(record.number),
        "" if step is None else str(step) if total is None else f"{step}/{total}",
        saved or "",
        f"{wording.age(record.started, now)} ago",
        wording.duration(over - record.started) if over else "",
        "" if record.folder is None else _short(record.folder.rsplit("/", 2)[0]),
    ]
    if wide:
        bytes_ = find.size(record.folder)
        metric = next(iter(progress.metrics.items()), None) if progress else None
        cells += [
            "" if bytes_ is None else wording.size(bytes_),
            "" if metric is None else f"{metric[0]}={wording.number(metric[1])}",
            command(record),
        ]
    return cells


def _trouble(record: Record, now: float) -> str:
    """What a running job waits for or lacks, and since when."""
    running = record.state == records.RUNNING
    if running and record.storage_gone is not None:
        return f"for {wording.age(record.storage_gone, now)}: its storage folder is gone"
    job = find.job_of(record) if running else None
    said = None if job is None else changes.trouble(job.status)
    if said is None:
        return ""
    since = wording.age(said.last_transition_time.timestamp(), now)
    return f"for {since}: {wording.cut(said.message or said.reason, _TROUBLE_LIMIT)}"


def command(record: Record) -> str:
    """How it was started, as one would type it; with the name that `tj run` had made, by which it goes on."""
    return shlex.join(_named(typed(record), record.name))


def typed(record: Record) -> list[str]:
    """The words by which it was started."""
    words = list(record.command)
    if len(words) > 1 and os.path.basename(words[1]) == "tj":
        return ["tj", *words[2:]]
    if words[1:3] == ["-m", "trainjob.cli"]:
        return ["tj", *words[3:]]
    return [os.path.basename(words[0]), *words[1:]] if words else []


def again(record: Record) -> str:
    """What resumes it: the command without `--fresh`, by which it may have been started."""
    words = shlex.split(command(record))
    end = words.index("--") if "--" in words else len(words)
    if words[:2] != ["tj", "run"]:
        return shlex.join(words)
    return shlex.join([*(word for word in words[:end] if word != "--fresh"), *words[end:]])


def _named(words: list[str], name: str) -> list[str]:
    end = words.index("--") if "--" in words else len(words)
    own = words[:end]
    if own[:2] != ["tj", "run"] or any(word.partition("=")[0] in ("--name", "-f", "--file") for word in own):
        return words
    return [*own, "--name", name, *words[end:]]


def asker(record: Record) -> Asker:
    """In whose words its failure is explained."""
    words = command(record).split()
    if words[:2] != ["tj", "run"]:
        return Asker.PYTHON
    return Asker.MANIFEST if "-f" in words or "--file" in words else Asker.SHELL


def _short(path: str) -> str:
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(home + "/") else path
