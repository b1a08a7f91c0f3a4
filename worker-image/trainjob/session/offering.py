"""A checkpoint that a rank brings to report(): when it counts as saved, the user's own upload, what stays where it is,
what it is called, and what is left of a folder whose files were moved.

Called by `calls`; the handle itself is `checkpoint`'s.
"""

from __future__ import annotations

import contextlib
import os
from enum import Enum
from typing import Callable, Optional, Union

from trainjob.session import alias, elsewhere, warned
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError
from trainjob.session.link import link
from trainjob_api import contract
from trainjob_api.rank_messages import Offer


class CheckpointUploadMode(str, Enum):
    """When report() with a checkpoint returns, and what it has promised by then.

    ```python
    checkpoint = Checkpoint.from_dict({"epoch": epoch})
    trainjob.report(metrics, checkpoint=checkpoint, checkpoint_upload_mode=trainjob.CheckpointUploadMode.SYNC)
    ```
    """

    ASYNC = contract.UPLOAD_ASYNC
    """Once every rank's files are staged with its agent: they survive the ranks; the upload continues in the
    background.
    """
    SYNC = contract.UPLOAD_SYNC
    """Once the checkpoint is committed to storage: it survives pods and nodes."""
    NO_UPLOAD = contract.UPLOAD_NONE
    """As ASYNC, and the files stay where they are, a folder that all ranks see or s3://: what is stored is a note of
    the place. They are yours: nobody copies, compares or removes them. Files that cannot stay, those of from_dict() and
    in the temporary folder, are copied as with ASYNC.
    """


def mode_of(mode: Union[CheckpointUploadMode, str, None]) -> str:
    """As the agent knows it. Raises ValueError."""
    if mode is None:
        return contract.UPLOAD_ASYNC
    # Ray's own enum is accepted as well: its members carry the same names.
    name = str(getattr(mode, "name", mode)).upper()
    if name not in CheckpointUploadMode.__members__:
        raise ValueError(f"checkpoint_upload_mode={mode!r}: one of {', '.join(CheckpointUploadMode.__members__)}")
    return CheckpointUploadMode[name].value


def offer(checkpoint: Checkpoint, mode: Union[CheckpointUploadMode, str, None], delete: Optional[bool]) -> Offer:
    """What the agent is told of it. `delete`: as report() is told. Raises CheckpointError."""
    if not isinstance(checkpoint, Checkpoint):
        raise CheckpointError(
            f"report(checkpoint=...) needs a Checkpoint, got {type(checkpoint).__name__}: use "
            "Checkpoint.from_directory(path) or from_dict(data)."
        )
    chosen = mode_of(mode)
    if delete is None:
        delete = checkpoint.owned or (mode is not None and chosen == contract.UPLOAD_ASYNC)
    return Offer(checkpoint.path, chosen, bool(delete), checkpoint.get_metadata())


def uploaded(
    upload: Callable[[Checkpoint, str], Checkpoint], checkpoint: Checkpoint, name: Optional[str], number: int
) -> Checkpoint:
    """What the user's function left, where it left it. `number`: of such calls of this rank."""
    context = link().context
    made = upload(checkpoint, name or f"checkpoint_{context.run or 1}-{context.attempt}-{number}")
    if not isinstance(made, Checkpoint):
        raise CheckpointError(
            f"report(checkpoint_upload_fn=...) must return a Checkpoint of where it has put the files, got {made!r}."
        )
    return made


def name(given: str, id_: str, storage: Optional[str]) -> None:
    """The user's own, as a link in the job's folder, where that is possible."""
    if storage is None or not alias.possible(storage):
        warned.once(
            "checkpoint_dir_name is ignored: a bucket has no links, and without storage there is no folder. "
            "Checkpoints are named by run, attempt and number."
        )
        return
    try:
        alias.link(storage, given, id_)
    except OSError as error:
        warned.once(f"checkpoint_dir_name: {error}; the checkpoint is stored as {id_}", "checkpoint_dir_name failed")


def left_there(checkpoint: Checkpoint) -> Checkpoint:
    """What is stored of one that stays where it is: a note of the place. One that cannot stay is stored itself."""
    if not isinstance(checkpoint, Checkpoint) or checkpoint.owned:
        return checkpoint  # refused below; or its folder goes with the handle
    place = checkpoint.path
    if not place.startswith("s3://"):
        if not os.path.isdir(place):
            raise CheckpointError(f"NO_UPLOAD: there is no folder {place} whose files could stay there.")
        if elsewhere.goes_with_the_run(place, link().context.storage):
            warned.once(
                f"NO_UPLOAD: {place} lies in the temporary folder, which goes with the run, so its files are copied to "
                "the job's storage: put them where get_context().get_storage().build_checkpoint_path_from_name(name) "
                "says, or leave NO_UPLOAD out.",
                "NO_UPLOAD in the temporary folder",
            )
            return checkpoint
    note = Checkpoint.in_new_folder("trainjob-elsewhere-")
    elsewhere.write(note.path, place)
    return note


def remove_emptied(folder: str) -> None:
    """What is left of a folder whose files were moved away, as Ray Train does; one with a file in it stays, and the
    working folder.
    """
    with contextlib.suppress(FileNotFoundError):  # a working folder that somebody removed
        if f"{os.getcwd()}/".startswith(f"{os.path.realpath(folder)}/"):
            return
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)
