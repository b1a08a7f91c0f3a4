"""A checkpoint that is a note of the place where user code has put its files (`NO_UPLOAD`): that place, and copying
from it.

Called by `contents` (`tj checkpoints download`, `tj model get`) and `commands` (`show`). The files are the user's: they
have no checksums, and are only read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence

from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.export import matches
from trainjob.checkpoint.reading import stored
from trainjob.cli.checkpoints.choice import Found
from trainjob.cli.checkpoints.places import troubles
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.screen import wording
from trainjob.session import elsewhere
from trainjob.session.errors import CheckpointError
from trainjob_api.contract import CLI_NOT_FOUND

UNFINISHED = ".trainjob-unfinished-copy"
"""In the target, while files come. One that is there already is of a copy that was killed."""
BLOCK = 1 << 20


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
    """Copy its files into a folder that is new or empty, and say so: all of them, or none. Raises CommandError."""
    said = f"the files of checkpoint {entry.id} are {where(place)}"
    if not os.path.isdir(place):
        here = "" if place.startswith("s3://") else ", and that is no folder of this machine"
        raise CommandError(
            f"{said}{here}", next_step=f"read {place} with what wrote it, where it can be seen", code=CLI_NOT_FOUND
        )
    reading = _Trouble(f"{said}, and cannot be read", f"`ls -l {place}` shows who may; then {AGAIN}")
    writing = _Trouble(f"{target} cannot be written", "make room and see who may write there, or name another with -o")
    with writing:
        there = sorted(set(os.listdir(target)) - {UNFINISHED}) if os.path.lexists(target) else []
    if there:
        raise CommandError(
            f"{target} is not empty ({', '.join(there[:3])}), and {said}", next_step="name another folder with -o"
        )
    with reading:
        names = sorted(
            os.path.relpath(os.path.join(above, name), place)
            for above, _, files in os.walk(place, onerror=_raise)
            for name in files
        )
    wanted = [name for name in names if matches(name, patterns)]
    if not wanted:
        raise CommandError(
            f"no file of {entry.id} matches {' or '.join(patterns)}" if names else f"{said}, and there are none",
            next_step=f"it has {', '.join(names[:5]) or 'none'}" + (" and more" if len(names) > 5 else ""),
            code=CLI_NOT_FOUND,
        )
    size = _all_or_nothing(place, target, wanted, reading, writing)
    print(
        f"checkpoint {entry.id} is in {target}: {wording.count(len(wanted), 'file')}, {wording.size(size)}, copied "
        f"from {place}; they have no checksums to compare with"
    )


class _Trouble:
    """What an OSError inside becomes: a CommandError that says on which side it was."""

    def __init__(self, said: str, next_step: str) -> None:
        self._said, self._next_step = said, next_step

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise CommandError(f"{self._said}: {error}", next_step=self._next_step) from None


def _raise(error: OSError) -> None:
    raise error


def _all_or_nothing(place: str, target: str, names: Sequence[str], reading: _Trouble, writing: _Trouble) -> int:
    """The bytes copied. They come into a folder inside the target, which may be a mount or a link, and are moved up
    once all are there.
    """
    unfinished, made = os.path.join(target, UNFINISHED), not os.path.lexists(target)
    try:
        with writing:
            shutil.rmtree(unfinished, ignore_errors=True)
            os.makedirs(unfinished)
        size = sum(
            _copy_file(os.path.join(place, each), os.path.join(unfinished, each), reading, writing) for each in names
        )
        with writing:
            for each in os.listdir(unfinished):
                os.rename(os.path.join(unfinished, each), os.path.join(target, each))
            os.rmdir(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(target)
        raise
    return size


def _copy_file(source: str, copied: str, reading: _Trouble, writing: _Trouble) -> int:
    size = 0
    with contextlib.ExitStack() as both:
        with reading:
            theirs = both.enter_context(open(source, "rb"))
        with writing:
            os.makedirs(os.path.dirname(copied), exist_ok=True)
            ours = both.enter_context(open(copied, "wb", buffering=0))
        while True:
            with reading:
                block = memoryview(theirs.read(BLOCK))
            if not block:
                return size
            size += len(block)
            with writing:
                while block:
                    block = block[ours.write(block) :]
