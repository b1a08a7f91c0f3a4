"""`tj model get`: the files of a job's best checkpoint, or of its latest."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.publishing.retention import Policy, find
from trainjob.cli.checkpoints import places as checkpoint_places
from trainjob.cli.checkpoints import weights
from trainjob.cli.checkpoints.choice import Found, choose, look, nothing
from trainjob.cli.checkpoints.contents import get_files
from trainjob.cli.checkpoints.places import Place
from trainjob.cli.errors import CommandError
from trainjob.launch.job import is_s3
from trainjob.screen import wording
from trainjob_api.contract import CLI_NOT_FOUND, CLI_OK, CLI_USAGE


def get(args: argparse.Namespace) -> int:
    """Choose, say which and why, and bring it."""
    if args.latest and args.metric:
        raise CommandError(
            "--latest asks for no metric", next_step="leave one of --latest and --metric out", code=CLI_USAGE
        )
    if bool(args.mode) and not args.metric:
        raise CommandError("--mode goes with --metric", next_step=f"--metric M --mode {args.mode}", code=CLI_USAGE)
    place = checkpoint_places.find(args)
    if place.single is not None:
        if args.best or args.latest or args.metric or args.run:
            raise CommandError(
                f"{args.what} is one checkpoint already",
                next_step="leave --best, --latest, --metric and --run out",
                code=CLI_USAGE,
            )
        found = look(place, everything=True)
        entry, why = choose(found, [str(place.single)])[0], "the one that is named"
    else:
        found = look(place, run=args.run)
        entry, why = _chosen(_scored(found, place, args), args)
    step = "" if entry.manifest is None or entry.manifest.note.step is None else f" (step {entry.manifest.note.step})"
    print(f"tj  | {entry.id}{step}: {why}", file=sys.stderr)
    get_files(found, entry, args.into, whole=False)
    _look_at_numbers(found, entry, args.into)
    return CLI_OK


_LOOKED_AT = 10
"""Earlier checkpoints that are read in search of one whose weights are numbers."""


def _look_at_numbers(found: Found, entry: Entry, into: str) -> None:
    """What was asked for is given; that it cannot be used is said, with the one that can."""
    names = weights.broken(os.path.abspath(os.path.expanduser(into)))
    if not names:
        return
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    said = [f"tj  | warning: {', '.join(names[:_NAMED])}{more} of checkpoint {entry.id} hold NaN or infinity"]
    earlier = [each for each in reversed(found.entries) if each.good and each.id < entry.id][:_LOOKED_AT]
    here = [each for each in earlier if not is_s3(found.uri(each))]
    good = next((each for each in here if weights.broken(found.uri(each)) == []), None)
    if good is not None:
        name = f"{found.place.words}/{good.id}" if found.place.is_name else found.uri(good)
        said.append(
            f"next: checkpoint {good.id} is the newest before it whose weights are numbers: `tj model get {name} -o "
            f"DIR` brings it, `tj run ... --resume-from {name}` trains on from it"
        )
    print(*said, sep="\n", file=sys.stderr)


_NAMED = 3
"""Tensors that are named."""


def _scored(found: Found, place: Place, args: argparse.Namespace) -> Found:
    """With the best by --metric and --mode; the mode may be left out where the job scores by that very metric."""
    if not args.metric:
        return found
    mode = args.mode or (found.policy.score_order if args.metric == found.policy.score_attribute else None)
    if mode is None:
        raise CommandError(
            f"--metric {args.metric}: is its lowest or its highest value the best?",
            next_step=f"--metric {args.metric} --mode min, or max",
            code=CLI_USAGE,
        )
    policy = Policy(None, args.metric, mode)
    best = inventory.best(found.entries, policy)
    return replace(found, policy=policy, best=None if best is None else best.id)


def _chosen(found: Found, args: argparse.Namespace) -> tuple[Entry, str]:
    if found.latest is None:
        others = sorted({"--run K"}) if found.others else []
        raise CommandError(
            nothing(found),
            next_step=f"`tj checkpoints list {found.place.words} --all` shows all runs"
            + (f"; {others[0]} takes one of them" if others else ""),
            code=CLI_NOT_FOUND,
        )
    name = found.policy.score_attribute
    if not args.latest and found.best is not None:
        entry = choose(found, ["best"])[0]
        assert entry.manifest is not None
        value = find(entry.manifest.note.metrics, str(name))
        return entry, f"the best by {'lowest' if found.policy.score_order == 'min' else 'highest'} {name}" + (
            "" if value is None else f", {wording.number(value)}"
        )
    if args.best or args.metric:
        raise CommandError(
            f"none of the checkpoints of {found.place.title} has a number {name!r}"
            if name
            else f"nothing says which checkpoint of {found.place.title} is the best",
            next_step=f"--metric M --mode min|max, where M is one of {_reported(found)}; or --latest",
            code=CLI_USAGE,
        )
    why = (
        ""
        if args.latest
        else "; no score attribute says which is the best"
        if not name
        else f"; none has a number {name!r}"
    )
    return choose(found, ["latest"])[0], f"the latest{why}"


def _reported(found: Found) -> str:
    """The numbers that the checkpoints were reported with."""
    names = {
        name
        for entry in found.entries
        if entry.manifest is not None
        for name, value in inventory.flat(entry.manifest.note.metrics).items()
        if isinstance(value, int | float)
    }
    return ", ".join(sorted(names)[:10]) or "those that report() was given (there are none)"
