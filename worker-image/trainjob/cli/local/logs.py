"""`tj logs` of a job of this machine: the lines of its ranks, kept since it ran or as they come."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from trainjob.cli.errors import CommandError
from trainjob.cli.local import find
from trainjob.cli.local.follow import follow
from trainjob.launch.errors import ConfigError
from trainjob.launch.local.registry import output, records
from trainjob.launch.outcome import log_choice
from trainjob.screen import streams
from trainjob_api.contract import CLI_NOT_FOUND, CLI_OK, CLI_USAGE

_RANKS_SHOWN = 16


def logs(args: argparse.Namespace) -> int:
    """Print them: of the newest start, all its attempts unless one is named."""
    try:
        selection = log_choice.parse(args.rank) if args.rank else log_choice.ALL
    except ConfigError as error:
        raise CommandError(
            str(error), next_step=f"`tj status {args.name}` says how many ranks there are", code=CLI_USAGE
        ) from None
    record = find.find(args)
    if args.follow and record.state == records.RUNNING:
        follow(
            record,
            output.stamp(record.started),
            lambda _record: None,
            lambda attempt, line: _print([line], selection) if args.attempt in (None, attempt) else None,
        )
        return CLI_OK
    pieces = output.pieces(record.output)
    if not pieces:
        raise CommandError(
            f"no output of {record.name} is kept" + (f" in {record.output}" if record.output else ""),
            next_step=f"`tj status {record.name}` shows what there is",
            code=CLI_NOT_FOUND,
        )
    newest = [piece for piece in pieces if piece.start == pieces[-1].start]
    chosen = [piece for piece in newest if args.attempt in (None, piece.attempt)]
    if not chosen:
        raise CommandError(
            f"{record.name} has no output of attempt {args.attempt}",
            next_step="of these: " + ", ".join(str(each) for each in sorted({piece.attempt for piece in newest})),
            code=CLI_NOT_FOUND,
        )
    shown = (line for piece in chosen for line in output.lines(piece) if _is_shown(line, selection))
    lines = shown if args.tail is None else iter(deque(shown, maxlen=args.tail))
    first = next(lines, None)
    _print(() if first is None else chain((first,), lines), log_choice.ALL)
    if first is None and selection.ranks is not None and args.tail != 0:
        streams.write(sys.stderr, _nothing(args.rank, chosen))
    earlier = len({piece.start for piece in pieces}) - 1
    if earlier:
        streams.write(
            sys.stderr, f"tj  | of the newest of {earlier + 1} starts; the earlier ones are in {record.output}"
        )
    return CLI_OK


def _nothing(rank: str, pieces: Sequence[output.Piece]) -> str:
    """The sentence where these ranks wrote no line."""
    found = {of for piece in pieces for line in output.lines(piece) if (of := log_choice.rank_of(line)) is not None}
    wrote = ", ".join(map(str, sorted(found)[:_RANKS_SHOWN])) + (", ..." if len(found) > _RANKS_SHOWN else "")
    there = f"ranks that wrote some: {wrote}" if found else "no rank wrote any"
    return f"tj  | no line of rank {rank} is kept; {there}"


def _print(lines: Iterable[str], selection: log_choice.Selection) -> None:
    for line in lines:
        if _is_shown(line, selection):
            print(line)
    sys.stdout.flush()


def _is_shown(line: str, selection: log_choice.Selection) -> bool:
    """Agents' own lines belong to no rank."""
    rank = log_choice.rank_of(line)
    return selection.ranks is None or (rank is not None and rank in selection)
