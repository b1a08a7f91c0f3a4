"""`ShardReader`: torch's FileSystemReader on a Checkpoint: of a sharded state only the files that hold this rank's
ranges are brought.

`sharded.load_sharded` uses it; users do who call torch.distributed.checkpoint themselves. Files come through
`Checkpoint.open`: verified, and once for all ranks of a worker. Reads whatever torch.distributed.checkpoint saved into
a folder. Must not know where checkpoints lie.
"""

from __future__ import annotations

import difflib
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence, Union

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError

METADATA = ".metadata"
_AT_ONCE = 4
"""Files that are brought side by side, ahead of the one that is read. The ranks of a worker do so too."""
_SHOWN = 3
"""Names in a sentence; the rest is counted."""


class ShardReader(FileSystemReader):
    """A StorageReader for `dcp.load(state, storage_reader=ShardReader(checkpoint))`.

    Raises CheckpointError (inside of torch's CheckpointException) for a checkpoint that holds no sharded state, or not
    all ranks' parts of it. The metadata and values that are no tensors are unpickled: only for checkpoints of your own.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise CheckpointError(
                f"ShardReader needs a Checkpoint, got {type(checkpoint).__name__}: pass what "
                "trainjob.get_checkpoint() returned."
            )
        super().__init__(called(checkpoint))
        self._checkpoint = checkpoint
        self._failed: Optional[Exception] = None
        self.fs = _Files(checkpoint)

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        """Called by torch when a checkpoint_id is given, which this cannot follow."""
        raise CheckpointError(
            f"checkpoint_id={str(checkpoint_id)!r}: this reader has its checkpoint already. Give "
            "storage_reader=ShardReader(checkpoint) alone."
        )

    def read_metadata(self) -> Metadata:
        """What is saved, and where. A failure is kept for `set_up_storage_reader`: torch takes one from here for
        another format, and logs it twice.
        """
        try:
            metadata = self._read_metadata()
        except (CheckpointError, OSError) as error:
            self._failed = error
            metadata = Metadata({}, storage_data={})
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failed is not None:
            raise self._failed
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        paths = dict.fromkeys(self.storage_data[item.storage_index].relative_path for item in plan.items)
        with ThreadPoolExecutor(_AT_ONCE, "trainjob-shards") as pool:
            # What cannot be brought is told where it is read.
            ahead = [pool.submit(lambda path: self._checkpoint.open(path).close(), path) for path in paths]
            try:
                return super().read_data(plan, planner)
            finally:
                for each in ahead:
                    each.cancel()

    def _read_metadata(self) -> Metadata:
        name, here = called(self._checkpoint), set(self._checkpoint.files())
        if METADATA not in here:
            raise CheckpointError(
                f"The checkpoint {name} holds no sharded state: no {METADATA} among its files "
                f"({_some(sorted(here))}). It was not saved by save_sharded() "
                "or torch.distributed.checkpoint: read its files in `with checkpoint.as_directory() as folder:`, or "
                "with to_dict() if from_dict() made it."
            )
        try:
            with self._checkpoint.open(METADATA) as file:
                metadata = pickle.load(file)
            needed = {info.relative_path for info in metadata.storage_data.values()}
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError) as error:
            raise CheckpointError(
                f"The {METADATA} of the checkpoint {name} cannot be read by torch {torch.__version__}: "
                f"{type(error).__name__}: {error}. "
                f"It is no metadata of torch.distributed.checkpoint, or that of a newer torch."
            ) from error
        lacking = sorted(needed - here)
        if lacking:
            ranks = sorted({int(found[1]) for found in (re.match(r"__(\d+)_", path) for path in lacking) if found})
            raise CheckpointError(
                f"The checkpoint {name} lacks files of its sharded state ({_some(lacking)}): ranks {ranks} did not "
                "report theirs. "
                "Every rank has to pass what save_sharded() gave it to the same report(), not rank 0 alone. Resume "
                "from another checkpoint."
            )
        found: Metadata = metadata
        return found


class ShardPlanner(DefaultLoadPlanner):
    """torch's load planner with errors that name every key that does not fit, and the nearest that would."""

    def create_local_plan(self) -> LoadPlan:
        try:
            return super().create_local_plan()
        except (RuntimeError, ValueError) as error:
            problems = self._lacking() + self._different()
            raise CheckpointError(
                "The state does not fit the checkpoint. " + " ".join(problems or [str(error)])
            ) from error

    def _lacking(self) -> List[str]:
        saved = list(self._saved())
        lacking = [] if self.allow_partial_load else sorted(set(self.state_dict) - set(saved))
        if not lacking:
            return []
        near = difflib.get_close_matches(lacking[0], saved, n=2, cutoff=0.5)
        hint = f" (nearest to the first: {_some(near)})" if near else f" (it has {_some(sorted(saved))})"
        return [
            f"The checkpoint does not have {_some(lacking)}{hint}. strict=False keeps what the state has for keys "
            "that the checkpoint lacks."
        ]

    def _different(self) -> List[str]:
        found = []
        for key, value in self.state_dict.items():
            saved = self._saved().get(key)
            if not isinstance(saved, TensorStorageMetadata):
                continue
            if not isinstance(value, torch.Tensor):
                found.append(
                    f"{key!r} is a tensor of shape {list(saved.size)} in the checkpoint and of type "
                    f"{type(value).__name__} in the state."
                )
            elif value.size() != saved.size:
                found.append(
                    f"{key!r} has shape {list(saved.size)} in the checkpoint and {list(value.size())} in the state."
                )
        rest = len(found) - _SHOWN
        return found[:_SHOWN] + ([f"{rest} more do not fit."] if rest > 0 else [])

    def _saved(self) -> dict[str, Any]:
        return self.metadata.state_dict_metadata if self.metadata is not None else {}


class _Files(FileSystem):
    """A checkpoint's files in the place of a folder's: paths are those within the checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @contextmanager
    def create_stream(self, path: Union[str, os.PathLike[str]], mode: str) -> Iterator[Any]:
        with self._checkpoint.open(os.fspath(path)) as file:
            yield file

    def concat_path(self, path: Union[str, os.PathLike[str]], suffix: str) -> str:
        return suffix


def called(checkpoint: Checkpoint) -> str:
    """The checkpoint in words. Not by `path` first: asking for that may bring all files."""
    return checkpoint.id or checkpoint.uri or checkpoint.path


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return (", ".join(map(repr, names[:_SHOWN])) or "nothing") + (f" and {rest} more" if rest > 0 else "")
