"""A checkpoint whose files user code has put where they are to stay (`NO_UPLOAD`): what is stored of it is one small
file that names the place.

Written by `calls` in report(), followed by `checkpoint`. The files themselves are the user's: nobody copies, compares
or removes them.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import List, Optional, Sequence

from trainjob.session.contents import Contents, PlainFolder
from trainjob.session.errors import CheckpointError
from trainjob_api import contract

FILE = contract.ELSEWHERE_FILE
_S3 = "s3://"


def write(folder: str, place: str) -> None:
    """The file that names `place`, the same on every rank that names it."""
    with open(os.path.join(folder, FILE), "w", encoding="utf-8") as file:
        json.dump({"path": place}, file)


def read(text: bytes) -> str:
    """The place that the file names. Raises CheckpointError when it says none."""
    try:
        place = json.loads(text)["path"]
    except (ValueError, KeyError, TypeError):
        place = None
    if not isinstance(place, str) or not place:
        raise CheckpointError(f"{FILE} does not say where the checkpoint's files are.")
    return place


def contents(place: str) -> Contents:
    """What is there."""
    return Unread(place) if place.startswith(_S3) else PlainFolder(place)


def goes_with_the_run(place: str, storage: Optional[str]) -> bool:
    """Whether a folder lies in the temporary one, and not in the job's `storage`, wherever that is."""
    return _within(place, tempfile.gettempdir()) and (storage is None or not _within(place, storage))


def _within(place: str, folder: str) -> bool:
    return f"{os.path.realpath(place)}/".startswith(f"{os.path.realpath(folder)}/")


class Unread:
    """Files in a bucket that user code has written in a way of its own."""

    def __init__(self, place: str) -> None:
        self._place = place

    def files(self) -> List[str]:
        """Raises CheckpointError, as the others do."""
        raise CheckpointError(
            f"The files of this checkpoint were put to {self._place} by your own code (NO_UPLOAD): read them with what "
            "wrote them. `path` of the checkpoint names the place."
        )

    def has(self, path: str) -> bool:
        """Nobody knows."""
        return bool(self.files())

    def bring(self, paths: Sequence[str]) -> None:
        """They stay where they are."""
        self.files()

    def file(self, path: str) -> str:
        """They stay where they are."""
        return str(self.files())

    def read_folder(self) -> str:
        """There is none."""
        return str(self.files())

    def folder(self) -> str:
        """There is none."""
        return str(self.files())
