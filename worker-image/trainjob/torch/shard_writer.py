"""`ShardWriter`: torch's FileSystemWriter for report(): each rank writes its part of a sharded state into a folder of
its own.

`sharded.save_sharded` uses it; users do who call torch.distributed.checkpoint themselves. The folder lies under TMPDIR,
in a worker next to the staging area, so that report() moves its files; names carry the rank, so that all ranks' folders
make one checkpoint, and the coordinator's has `.metadata`. What is written is torch's own format: torch's readers and
tools open a checkpoint's folder too. It must not know where checkpoints go.
"""

from __future__ import annotations

import io
import os
import pickle
import queue
import warnings
import weakref
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Union, cast

import torch
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from trainjob.session import recycled
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError
from trainjob.torch import shard_pieces
from trainjob.torch.shard_pieces import Piece
from trainjob_api import contract


class ShardWriter(FileSystemWriter):
    """A StorageWriter for one `dcp.save` or `dcp.async_save`; afterwards `checkpoint()` is what this rank passes to
    report().

        writer = ShardWriter()
        dcp.save(state, storage_writer=writer)
        trainjob.report(metrics, checkpoint=writer.checkpoint())

    Every rank makes one for each save and reports it in the same report(). `file_bytes` bounds the files (and is what
    reading them back is rounded up to), `threads` write them. With `dcp.async_save` (thread type only) give it a
    process group of its own, `process_group=dist.new_group(backend="gloo")` made once, and wait for its future on every
    rank at the same step before report(). Raises CheckpointError where the temporary folder cannot be made.
    """

    def __init__(self, *, file_bytes: int = shard_pieces.FILE_BYTES, threads: int = 1) -> None:
        if file_bytes < 1 or threads < 1:
            raise ValueError(f"ShardWriter(file_bytes={file_bytes}, threads={threads}): both must be 1 or more")
        try:
            self._checkpoint = Checkpoint.in_new_folder("trainjob-shards-")
        except OSError as error:
            raise CheckpointError(
                f"No temporary folder for this rank's part of a sharded state can be made: {error}. TMPDIR says where."
            ) from error
        self._file_bytes = file_bytes
        self._began = self._written = self._given = False
        # Staging takes the files from the page cache at once: what a flush would guard against, a crash of the node,
        # loses staging too.
        super().__init__(self._checkpoint.path, sync_files=False, thread_count=threads)
        self.fs = _Files()

    def checkpoint(self) -> Checkpoint:
        """This rank's part, for report(), which takes the files over; unreported ones go with the handle. Raises
        CheckpointError before the save is done.
        """
        if not self._written:
            raise CheckpointError(
                "Nothing was saved with this ShardWriter yet: call dcp.save first, or wait for the future of "
                "dcp.async_save with result()."
            )
        if not self._given:
            # Called before the folder is removed, the newest first; not at exit, where an exception between save and
            # report is told already.
            weakref.finalize(self._checkpoint, _warn_unreported, self._checkpoint.path).atexit = False
            self._given = True
        return self._checkpoint

    def reset(self, checkpoint_id: Union[str, os.PathLike[str], None] = None) -> None:
        """Called by torch when a checkpoint_id is given, which this cannot follow."""
        raise CheckpointError(
            f"checkpoint_id={str(checkpoint_id)!r} cannot be chosen: report() names checkpoints. Give "
            "storage_writer=ShardWriter() alone."
        )

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._began:
            raise CheckpointError(
                "A ShardWriter saves once, since report() takes its folder: make a new one for each save."
            )
        if not kwargs.get("use_collectives", True):
            raise CheckpointError(
                "use_collectives=False is not supported: it gives each rank its own metadata, which no other number "
                "of ranks can load."
            )
        self._began = True
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        # Before the coordinator drops what several ranks have: so it spreads pieces, not tensors, over the ranks.
        plan = replace(plan, items=shard_pieces.split(plan.items, self._file_bytes))
        return super().prepare_local_plan(plan)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[List[WriteResult]]:
        files: queue.Queue[Any] = queue.Queue()
        prefix = plan.storage_data.prefix
        # A rank without any item has an empty file: each rank has something to report.
        for number, items in enumerate(shard_pieces.pack(plan.items, self._file_bytes) or [[]]):
            name = f"{prefix}{number}{DEFAULT_SUFFIX}"
            files.put((self.fs.concat_path(self.path, name), name, items))
        with _without_checksums():
            done = self._write_data(cast(SavePlanner, _Resolver(planner)), files)
        self._written = True
        return done

    def __getstate__(self) -> Dict[str, Any]:
        raise CheckpointError(
            "A ShardWriter cannot be handed to another process (AsyncCheckpointerType.PROCESS): use the thread type. "
            "Uploads are in a process of their own anyway."
        )


class _Files(FileSystem):
    """torch's, but that new files may be a former checkpoint's, written over."""

    @contextmanager
    def create_stream(self, path: Union[str, os.PathLike[str]], mode: str) -> Iterator[io.IOBase]:
        with recycled.new_file(os.fspath(path)) if mode == "wb" else open(path, mode) as stream:
            yield cast(io.IOBase, stream)


def _without_checksums() -> AbstractContextManager[Any]:
    """torch.save's own of each tensor, which no reader compares: what is stored has the manifest's."""
    try:
        from torch.utils.serialization import config
    except ImportError:  # a torch that always takes them
        return nullcontext()
    made: AbstractContextManager[Any] = cast(Any, config).patch({"save.compute_crc32": False})
    return made


def _warn_unreported(folder: str) -> None:
    """In a worker, a part that went unreported is a checkpoint that lacks it: said when its handle goes, at the
    latest with the next save.
    """
    if os.environ.get(contract.ENV_AGENT_SOCKET) and any(name.endswith(DEFAULT_SUFFIX) for name in _listed(folder)):
        warnings.warn(
            "What save_sharded() wrote for this rank was not reported, and a checkpoint without it cannot be loaded: "
            "every rank has to pass its own part to the "
            "same report(), not rank 0 alone. (Without harm if TMPDIR was set to another volume than the staging "
            "area's: report() copies then.)",
            stacklevel=1,
        )


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


class _Resolver:
    """What of a planner writing needs: the data of an item, which for a piece is cut from that of the whole."""

    def __init__(self, planner: SavePlanner) -> None:
        self._planner = planner

    def resolve_data(self, item: WriteItem) -> Any:
        if isinstance(item, Piece):
            return item.cut(cast(torch.Tensor, self._planner.resolve_data(item.whole)).detach())
        if item.type != WriteItemType.BYTE_IO:
            return self._planner.resolve_data(item)
        try:
            return self._planner.resolve_data(item)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"The value of {item.index.fqn!r} cannot be pickled: {type(error).__name__}: {error}"
            ) from error
