"""`tj checkpoints verify` and `download`: what reads checkpoints through."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from trainjob.checkpoint import export
from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.errors import DamagedError
from trainjob.checkpoint.export import Export
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.stores import transfer
from trainjob.cli.checkpoints import places as checkpoint_places
from trainjob.cli.checkpoints import put_elsewhere
from trainjob.cli.checkpoints.choice import Found, choose, find_here, look, nothing, wanted
from trainjob.cli.checkpoints.places import troubles
from trainjob.cli.checkpoints.transfer_progress import progress
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api.contract import CLI_ERROR, CLI_NOT_FOUND, CLI_OK


@dataclass(frozen=True)
class Verdict:
    """What reading a checkpoint through has shown."""

    entry: Entry
    damage: tuple[str, ...]
    """A sentence for each file, or one about the whole."""
    gone: bool = False
    """It was removed while it was read."""


# --- verify -----------------------------------------------------------------------------------------------------------


def verify(args: argparse.Namespace) -> int:
    """0 when all is as it was saved, 1 when something is damaged."""
    place = checkpoint_places.find(args)
    words = wanted(args, place, ())
    found = look(place, everything=any(word not in ("latest", "best") for word in words))
    entries = (
        choose(found, words)
        if words
        else [entry for entry in found.entries if entry.state in (inventory.GOOD, inventory.DAMAGED)]
    )
    if not entries:
        raise CommandError(
            nothing(found),
            next_step=f"`tj checkpoints list {place.words} --all` shows other runs and what is not committed",
            code=CLI_NOT_FOUND,
        )
    verdicts = [_verified(found, entry) for entry in entries]
    damaged = [verdict for verdict in verdicts if verdict.damage]
    if args.mark:
        with troubles(place):
            for verdict in damaged:
                stored.mark_damaged(place.store, verdict.entry.prefix, verdict.damage[0])
    if args.output == "json":
        print(
            json.dumps(
                [
                    {
                        "id": str(v.entry.id),
                        "uri": found.uri(v.entry),
                        "good": not v.damage and not v.gone,
                        "gone": v.gone,
                        "damage": v.damage,
                    }
                    for v in verdicts
                ],
                indent=2,
            )
        )
    else:
        for verdict in verdicts:
            print(f"{verdict.entry.id} {_said(verdict)}")
    sys.stdout.flush()
    if damaged:
        _advise(found, damaged, marked=args.mark)
    return CLI_ERROR if damaged else CLI_OK


def _verified(found: Found, entry: Entry) -> Verdict:
    if entry.manifest is None:
        return Verdict(entry, (entry.why or "it is not committed: it has no manifest",))
    with progress(f"{entry.id}", entry.manifest.total_bytes) as bar, troubles(found.place):
        damage = stored.damages(found.place.patient, entry.prefix, entry.manifest.entries, bar.moved)
    if damage and _removed(found, entry):
        return Verdict(entry, (), gone=True)
    return Verdict(entry, tuple(damage) or ((entry.why,) if entry.why else ()))


def _removed(found: Found, entry: Entry) -> bool:
    """Whether what lacks has been removed on purpose: the job continues, and with it its retention."""
    with troubles(found.place):
        return inventory.look_at(found.place.store, entry.prefix, entry.id).state in (
            inventory.UNFINISHED,
            inventory.RETIRED,
        )


def _said(verdict: Verdict) -> str:
    if verdict.gone:
        return "was removed while it was read, probably by retention (keep)"
    if not verdict.damage:
        assert verdict.entry.manifest is not None
        return (
            f"is intact: {wording.count(len(inventory.files(verdict.entry.manifest)), 'file')}, "
            f"{wording.size(verdict.entry.manifest.total_bytes)} with the library's own"
        )
    return "is damaged:" + "".join(f"\n  {line}" for line in verdict.damage)


def _advise(found: Found, damaged: Sequence[Verdict], *, marked: bool) -> None:
    unmarked = [str(v.entry.id) for v in damaged if v.entry.state == inventory.GOOD]
    if marked or not unmarked:
        step = (
            "a restart passes over a marked checkpoint and takes the one before; "
            + f"`tj checkpoints rm {found.place.words} {damaged[0].entry.id}` removes one"
        )
    else:
        step = (
            f"`tj checkpoints verify {found.place.words} {' '.join(unmarked)} --mark` marks it, so that restarts "
            "pass it over"
        )
    print(f"next: {step}", file=sys.stderr)


# --- download ---------------------------------------------------------------------------------------------------------


def download(args: argparse.Namespace) -> int:
    """Into a folder; with --files a part of it."""
    found, entries = find_here(args, ["latest"])
    get_files(found, entries[0], args.into, patterns=args.files, whole=not args.files)
    return CLI_OK


def get_files(found: Found, entry: Entry, into: str, *, patterns: Sequence[str] = (), whole: bool) -> None:
    """Bring a checkpoint's files, verified, and say so; of one that user code has put elsewhere, those. Raises
    CommandError.
    """
    manifest = entry.manifest
    if manifest is None or not entry.good:
        raise CommandError(
            f"checkpoint {entry.id} is {'damaged: ' + entry.why if entry.why else 'not committed'}",
            next_step=f"take another one: `tj checkpoints list {found.place.words}`",
        )
    target = os.path.abspath(os.path.expanduser(into))
    place = put_elsewhere.place_of(found, entry)
    if place is not None:
        put_elsewhere.copy(entry, place, target, patterns)
        return
    files = export.select(manifest, patterns, whole)
    if not files:
        names = [path for path, _ in inventory.files(manifest)]
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise CommandError(
            f"no file of {entry.id} matches {' or '.join(patterns)}"
            if patterns
            else f"checkpoint {entry.id} has no files but the library's own",
            next_step=f"it has {shown or 'none'}: `tj checkpoints show {found.place.words} {entry.id}`",
            code=CLI_NOT_FOUND,
        )
    wish = Export(found.place.patient, entry.prefix, manifest, files, target, whole)
    with troubles(found.place):
        lacking = export.prepare(wish)
        total = sum(file.size for file in lacking)
        if len(lacking) < len(files):
            print(
                f"tj  | {len(files) - len(lacking)} of {wording.count(len(files), 'file')} are here already",
                file=sys.stderr,
            )
        if lacking:
            try:
                with progress(str(entry.id), total) as bar:
                    export.download(wish, lacking, bar.moved)
            except DamagedError:
                if not _removed(found, entry):
                    raise
                raise CommandError(
                    f"checkpoint {entry.id} was removed while it was read, likely by retention",
                    next_step=f"take a newer one: `tj checkpoints list {found.place.words}`; what came of this one "
                    f"is in {target}",
                    code=CLI_NOT_FOUND,
                ) from None
        else:
            export.download(wish, (), transfer.nothing)
    size = sum(file.size for file in files)
    print(
        f"checkpoint {entry.id} is in {target}: {wording.count(len(files), 'file')}, {wording.size(size)}, as they "
        "were saved"
    )
