"""A checkpoint that is a note of the place where user code has put its files (`NO_UPLOAD`): that place, and copying
from it.

Called by `contents` (`tj checkpoints download`, `tj model get`) and `commands` (`show`). The files are the user's: they
have no checksums, and are only read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.export import matches
from trainjob.checkpoint.reading import stored
from trainjob.cli.checkpoints.choice import Found
from trainjob.cli.checkpoints.places import troubles
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob.session import elsewhere
from trainjob.session.errors import CheckpointError
from trainjob_api.contract import CLI_NOT_FOUND


def place_of(found: Found, entry: Entry) -> str | None:
    """Where its files are; None: in the job's folder, as most are. Raises CommandError."""
    if entry.manifest is None or not entry.manifest.is_note:
        return None
    with troubles(found.place):
        text = found.place.store.read(stored.join(entry.prefix, elsewhere.FILE))
    try:
        return elsewhere.read(text or b"")
    except CheckpointError as error:
        raise CommandError(
            f"checkpoint {entry.id} cannot be read: {error}",
            next_step=f"`tj checkpoints verify {found.place.words} {entry.id}` compares what is stored",
        ) from None


def where(place: str) -> str:
    """`in /data/x, where your own code put them (NO_UPLOAD)`."""
    return f"in {place}, where your own code put them (NO_UPLOAD)"


def copy(entry: Entry, place: str, target: str, patterns: Sequence[str]) -> None:
    """Copy its files into a folder that is new or empty, and say so. Raises CommandError."""
    said = f"the files of checkpoint {entry.id} are {where(place)}"
    if not os.path.isdir(place):
        here = "" if place.startswith("s3://") else ", and that is no folder of this machine"
        raise CommandError(
            f"{said}{here}", next_step=f"read {place} with what wrote it, where it can be seen", code=CLI_NOT_FOUND
        )
    try:
        there = sorted(os.listdir(target)) if os.path.lexists(target) else []
        if there:
            raise CommandError(
                f"{target} is not empty ({', '.join(there[:3])}), and {said}", next_step="name another folder with -o"
            )
        names = sorted(
            os.path.relpath(os.path.join(above, name), place) for above, _, files in os.walk(place) for name in files
        )
        wanted = [name for name in names if matches(name, patterns)]
        if not wanted:
            raise CommandError(
                f"no file of {entry.id} matches {' or '.join(patterns)}" if names else f"{said}, and there are none",
                next_step=f"it has {', '.join(names[:5]) or 'none'}" + (" and more" if len(names) > 5 else ""),
                code=CLI_NOT_FOUND,
            )
        for name in wanted:
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            shutil.copyfile(os.path.join(place, name), os.path.join(target, name))
        size = sum(os.path.getsize(os.path.join(target, name)) for name in wanted)
    except OSError as error:
        raise CommandError(
            f"{said}, and copying them failed: {error}", next_step="name another folder with -o"
        ) from None
    print(
        f"checkpoint {entry.id} is in {target}: {wording.count(len(wanted), 'file')}, {wording.size(size)}, copied "
        f"from {place}; they have no checksums to compare with"
    )
