"""`tj logs` of a job of this machine: the lines of its ranks, kept since it ran or as they come."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from trainjob.cli import no_such_rank
from trainjob.cli.errors import CommandError
from trainjob.cli.local import find
from trainjob.cli.local.follow import follow
from trainjob.launch.errors import ConfigError
from trainjob.launch.local.registry import earlier, output, records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome import log_choice
from trainjob.screen import streams
from trainjob.screen.asked import reason_here
from trainjob_api.contract import CLI_NOT_FOUND, CLI_OK, CLI_USAGE

_RANKS_SHOWN = 16


def logs(args: argparse.Namespace) -> int:
    """Print them: of the newest run or the one that is named, all its attempts unless one is named."""
    try:
        selection = log_choice.parse(args.rank) if args.rank else log_choice.ALL
    except ConfigError as error:
        raise CommandError(
            str(error), next_step=f"`tj status {args.name}` says how many ranks there are", code=CLI_USAGE
        ) from None
    newest = find.find(args)
    record = find.run_of(newest, args.run)
    if args.follow and record.state == records.RUNNING:
        _check(record, args.rank, selection)
        marks = Marks(record)

        def on_line(attempt: int, line: str) -> None:
            if args.attempt in (None, attempt) and _is_shown(line, selection):
                _print(marks.before(attempt, line))

        follow(record, output.stamp(record.started), marks.knows, on_line)
        return CLI_OK
    pieces = output.pieces(record.output)
    chosen = _chosen(record, pieces, args.run, args.attempt)
    shown = ((piece.attempt, line) for piece in chosen for line in output.lines(piece) if _is_shown(line, selection))
    lines = shown if args.tail is None else iter(deque(shown, maxlen=args.tail))
    first, marks = next(lines, None), Marks(record)
    if first is not None:
        _print(each for attempt, line in chain((first,), lines) for each in marks.before(attempt, line))
    if first is None and selection.ranks is not None and args.tail != 0:
        _check(record, args.rank, selection)
        streams.say(_nothing(args.rank, chosen))
    if args.run is None and (told := _others(newest, pieces)):
        streams.say(told)
    return CLI_OK


def _check(record: Record, asked: str, selection: log_choice.Selection) -> None:
    """Raises CommandError where none of these ranks is, or ever was, one of the job's."""
    if (job := find.job_of(record)) is not None:
        no_such_rank.check(record.name, asked, selection, log_choice.largest_size(job))


class Marks:
    """A line where another attempt begins, so that what its ranks wrote is not taken for the one before's. One attempt
    alone has none.
    """

    def __init__(self, record: Record) -> None:
        self._shown: int | None = None
        self.knows(record)

    def knows(self, record: Record) -> None:
        """The job as it is now."""
        job = find.job_of(record)
        self._status = None if job is None else job.status

    def before(self, attempt: int, line: str) -> list[str]:
        """The line, and in front of it the mark, if there is one."""
        before, self._shown = self._shown, attempt
        return [line] if before in (None, attempt) else [self._mark(attempt), line]

    def _mark(self, attempt: int) -> str:
        status = self._status
        known = [] if status is None else [(each.attempt, each.started_at, each.cause) for each in status.history]
        now = None if status is None else status.attempt
        known += [] if now is None else [(now.number, now.started_at, now.cause)]
        at, cause = next(((at, cause) for number, at, cause in known if number == attempt), (None, None))
        when = "" if at is None else f", begun {time.strftime('%H:%M:%S', time.localtime(at.timestamp()))}"
        return f"tj  | attempt {attempt}{when}" + ("" if cause is None else f" [{reason_here(cause)}]")


def _chosen(
    record: Record, pieces: Sequence[output.Piece], run: int | str | None, attempt: int | None
) -> list[output.Piece]:
    """Of that run. Raises CommandError where nothing of it is kept."""
    start = output.stamp(record.started) if record.started else pieces[-1].start if pieces else ""
    of_run = [piece for piece in pieces if piece.start == start]
    which = "" if run is None else f"run {run} of "
    if not of_run:
        raise CommandError(
            f"no output of {which}{record.name} is kept" + (f" in {record.output}" if record.output else ""),
            next_step=f"`tj history {record.name}` lists its runs, `tj status {record.name}` shows what there is",
            code=CLI_NOT_FOUND,
        )
    chosen = [piece for piece in of_run if attempt in (None, piece.attempt)]
    if not chosen:
        raise CommandError(
            f"{which}{record.name} has no output of attempt {attempt}",
            next_step="of these: " + ", ".join(str(each) for each in sorted({piece.attempt for piece in of_run})),
            code=CLI_NOT_FOUND,
        )
    return chosen


def _others(newest: Record, pieces: Sequence[output.Piece]) -> str | None:
    """That there is output of runs before; None: of this one alone."""
    starts = {piece.start for piece in pieces} - {output.stamp(newest.started)}
    if not starts:
        return None
    named = [earlier.name_of(each) for each in find.every_run(newest)[1:] if output.stamp(each.started) in starts]
    where = f"`tj logs {newest.name} --run {named[0]}` shows the one before" if named else f"others: {newest.output}"
    return f"tj  | of the newest of {len(starts) + 1} runs; {where}"


def _nothing(rank: str, pieces: Sequence[output.Piece]) -> str:
    """The sentence where these ranks wrote no line."""
    found = {of for piece in pieces for line in output.lines(piece) if (of := log_choice.rank_of(line)) is not None}
    wrote = ", ".join(map(str, sorted(found)[:_RANKS_SHOWN])) + (", ..." if len(found) > _RANKS_SHOWN else "")
    there = f"ranks that wrote some: {wrote}" if found else "no rank wrote any"
    return f"tj  | no line of rank {rank} is kept; {there}"


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _is_shown(line: str, selection: log_choice.Selection) -> bool:
    """Agents' own lines belong to no rank."""
    rank = log_choice.rank_of(line)
    return selection.ranks is None or (rank is not None and rank in selection)
