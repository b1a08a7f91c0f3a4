"""`tj checkpoints rm`: what may go, the question before it, and the removal by retention's own protocol."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.publishing import retire
from trainjob.cli.checkpoints.choice import Found, find_here
from trainjob.cli.checkpoints.places import Place, troubles
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api.contract import CLI_ERROR, CLI_OK, CLI_USAGE


def remove(args: argparse.Namespace) -> int:
    """Remove what is named."""
    found, entries = find_here(args, ())
    if not entries:
        raise CommandError(
            "no checkpoint is named", next_step=f"tj checkpoints rm {found.place.words} ID ...", code=CLI_USAGE
        )
    if found.place.alone:
        raise CommandError(
            f"{found.place.store.uri()} is a copy of checkpoint {entries[0].id} outside of a job's folder",
            next_step="remove its folder by hand: it is yours",
        )
    if not args.force:
        for entry in entries:
            _refuse(found, entry, args)
    if not args.yes and not _agreed(found, entries):
        print("nothing was removed", file=sys.stderr)
        return CLI_ERROR
    for entry in entries:
        with troubles(found.place):
            retire.remove(found.place.patient, entry.id)
        freed = f", {wording.size(entry.manifest.total_bytes)}" if entry.manifest is not None else ""
        print(f"{entry.id} is removed{freed}", flush=True)
    return CLI_OK


def _refuse(found: Found, entry: Entry, args: argparse.Namespace) -> None:
    """Raises CommandError for one that a job may still need."""
    place, why = found.place, ""
    if entry.id in found.used:
        why = f"is in use: {_job(place)} started from it"
    elif entry.id == found.latest and not _is_over(found):
        why = f"is the latest of {_job(place)}: a restart resumes from it"
    elif entry.state == inventory.UNFINISHED and not _is_over(found):
        why = f"is not committed: {_job(place)} may still be uploading it"
    if why:
        raise CommandError(
            f"checkpoint {entry.id} {why}; nothing was removed",
            next_step=f"if you mean it: `tj checkpoints rm {place.words} {' '.join(_given(args))} --force`",
        )


def _is_over(found: Found) -> bool:
    """Whether nothing will resume from the newest checkpoint by itself: the object says so, or its run completed."""
    from trainjob.checkpoint.reading import runs

    if found.place.over is not None:
        return found.place.over
    with troubles(found.place):
        return found.run is not None and runs.ended(found.place.store, found.run)


def _job(place: Place) -> str:
    if place.phase:
        return f"{place.title} ({place.phase})"
    return f"{place.title} (not completed)"


def _given(args: argparse.Namespace) -> list[str]:
    return list(args.ids or ())


def _agreed(found: Found, entries: Sequence[Entry]) -> bool:
    """Ask. Raises CommandError where nobody can answer."""
    size = sum(entry.manifest.total_bytes for entry in entries if entry.manifest is not None)
    what = f"{wording.count(len(entries), 'checkpoint')} ({wording.size(size)}) from {found.place.store.uri()}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(
            f"{what} would be removed for good, and there is no terminal to ask on",
            next_step="give --yes to remove without a question",
            code=CLI_USAGE,
        )
    for entry in entries:
        marks = ", ".join(found.marks(entry))
        print(f"  {entry.id}" + (f" ({marks})" if marks else ""), file=sys.stderr)
    print(f"remove {what} for good? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
