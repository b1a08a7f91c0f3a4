"""`save_sharded` and `load_sharded`: a state that is spread over ranks (FSDP2, tensor parallel), as a checkpoint that
any number of ranks can load.

Called by user code between report() and get_checkpoint(). The format, the plan of who writes and reads what, and the
collectives are torch.distributed.checkpoint's; here is what makes its calls fit ours, and its errors readable. Must not
know where checkpoints lie.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Mapping, Optional

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError, TrainJobError
from trainjob.torch import shard_pieces
from trainjob.torch.shard_reader import ShardPlanner, ShardReader, called
from trainjob.torch.shard_writer import ShardWriter


def save_sharded(
    state_dict: Mapping[str, Any],
    *,
    process_group: Optional[dist.ProcessGroup] = None,
    file_bytes: int = shard_pieces.FILE_BYTES,
) -> Checkpoint:
    """Write this rank's part of `state_dict`; returns what this rank passes to report(). All ranks call it, and report,
    at the same place.

    Tensors may be DTensors (each rank writes its shards; what several ranks have is written once, spread over them) or
    plain ones; other values are pickled, of one rank. Objects with `state_dict()` are asked for theirs. The values are
    those at the time of the call. Uses collectives of `process_group` (None: the default one; without any, this process
    saves by itself). Files have at most `file_bytes`, except for a single row of a tensor or a pickled value that is
    larger.

        model_state, optimizer_state = get_state_dict(model, optimizer)     # torch.distributed.checkpoint.state_dict
        state = {"model": model_state, "optimizer": optimizer_state, "step": step}
        trainjob.report(metrics, checkpoint=save_sharded(state))

    Raises CheckpointError, on all ranks, when one of them fails.
    """
    writer = ShardWriter(file_bytes=file_bytes)
    with _readable("save_sharded", process_group):
        save(dict(state_dict), storage_writer=writer, process_group=process_group)
    return writer.checkpoint()


def load_sharded(
    state_dict: Dict[str, Any],
    checkpoint: Checkpoint,
    *,
    strict: bool = True,
    process_group: Optional[dist.ProcessGroup] = None,
) -> None:
    """Load into `state_dict` in place what save_sharded() saved, at any number of ranks and with any sharding. All
    ranks call it.

    Each rank reads the ranges of its own shards alone, from the files that hold them. Tensors are filled (and cast to
    their dtype), other values replaced; objects with `load_state_dict()` are given theirs. What the checkpoint has
    beyond `state_dict` is not read. `strict`: every key of `state_dict` must be there; else those that are lacking stay
    as they are.

        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        load_sharded(state, checkpoint)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    Raises CheckpointError, on all ranks, naming the key: one that is lacking, a shape that differs, a checkpoint that
    holds no sharded state or not all of it. Values that are no tensors are unpickled: only for checkpoints of your own.
    """
    reader = ShardReader(checkpoint)
    planner = ShardPlanner(allow_partial_load=not strict)
    with _readable(f"load_sharded({called(checkpoint)})", process_group):
        load(state_dict, storage_reader=reader, planner=planner, process_group=process_group)


@contextmanager
def _readable(what: str, process_group: Optional[dist.ProcessGroup]) -> Iterator[None]:
    """torch's CheckpointException, which is no Exception and holds every rank's traceback, as our errors; its
    warning about one process unsaid.
    """
    try:
        if dist.is_initialized():
            yield
            return
        # Only here, since leaving this context makes every warning that was shown once show again.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            yield
    except CheckpointException as error:
        told = _told(what, error, dist.get_rank(process_group) if dist.is_initialized() else 0)
        try:
            raise told from told.__cause__
        finally:
            del told  # its traceback holds this frame: the state would live until the next garbage collection


def _told(what: str, error: CheckpointException, rank: int) -> BaseException:
    """This rank's own error if it has a sentence, or is no error (a KeyboardInterrupt); else one that names the
    first rank that failed.
    """
    causes = {rank: failure[0] for rank, failure in error.failures.items()}
    own = causes.get(rank)
    if own is not None and (isinstance(own, TrainJobError) or not isinstance(own, Exception)):
        return own
    first = min(causes)
    others = f" (and {len(causes) - 1} other ranks)" if len(causes) > 1 else ""
    text = (
        str(causes[first])
        if isinstance(causes[first], TrainJobError)
        else f"{type(causes[first]).__name__}: {causes[first]}"
    )
    told = CheckpointError(f"{what} failed on rank {first}{others}: {text}", sorted(causes))
    told.__cause__ = causes[first]
    return told
