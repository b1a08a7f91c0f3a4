"""Orbax over the ranks of a TrainJob: of a state of JAX arrays each rank writes what it has into a folder of its own,
and all of them together are one checkpoint of Orbax's.

```python
trainjob.jax.initialize()
state = trainjob.orbax.load(state)
...
trainjob.report({"loss": loss}, checkpoint=trainjob.orbax.save(state), step=step)
```
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Iterator, Optional

from trainjob.integrations.needed import missing
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError, TrainJobError

try:
    import orbax.checkpoint as ocp
except ImportError as error:
    raise missing("orbax.checkpoint", "orbax-checkpoint>=0.12", error) from error
import jax
import numpy as np

__all__ = ["load", "save"]

FOLDER = "orbax"
"""Orbax's checkpoint inside the job's."""


def save(state: Any) -> Checkpoint:
    """Write this rank's part of `state`, a tree of arrays and numbers; returns what this rank passes to report(). All
    ranks call it, and report, behind the same step.

    The checkpoint is a plain one of Orbax's, in its folder `orbax`: whatever reads those reads it, at any number of
    processes. Of what is no array of JAX's, rank 0's is kept. Raises TrainJobError where JAX does not know the job's
    ranks, and on ranks whose tree differs from rank 0's.
    """
    context = calls.get_context()
    if jax.process_count() != context.world_size:
        raise TrainJobError(
            f"the job has {context.world_size} ranks, and JAX counts {jax.process_count()}: each would train alone. "
            "Call trainjob.jax.initialize() before anything that asks JAX for a device."
        )
    state = jax.tree.map(_plain, state)
    mine = _shape_of(state)
    if calls.broadcast_from_rank_zero(mine) != mine:
        raise TrainJobError(
            f"trainjob.orbax.save(): the tree of rank {context.rank} has other names or shapes than rank 0's, and what "
            "rank 0 does not have would be lost. Pass the same tree on all ranks."
        )
    checkpoint = Checkpoint.in_new_folder("trainjob-orbax-")
    folder = os.path.join(checkpoint.path, FOLDER)
    with _quiet(), ocp.Checkpointer(_handler(), multiprocessing_options=_each_for_itself()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(state))
    if jax.process_index() != 0:
        # Each process takes itself for the first. Of what all have written in the same words one copy is enough.
        for entry in os.scandir(folder):
            if entry.is_file():
                os.remove(entry.path)
    return checkpoint


def load(state: Any, checkpoint: Optional[Checkpoint] = None) -> Any:
    """The state that `save` has written into the checkpoint, as a new tree, with the shapes, kinds and shardings of
    `state`, whatever the ranks were that wrote it. All ranks call it. None: the job's newest checkpoint; at a first
    start, where there is none, `state` as it is.

    Raises CheckpointError for a checkpoint that `save` has not made.
    """
    if checkpoint is None:
        checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return state
    with checkpoint.as_directory() as directory:
        folder = os.path.join(directory, FOLDER)
        if not os.path.isdir(folder):
            raise CheckpointError(
                f"the checkpoint {checkpoint.path} holds no folder {FOLDER!r}: it was not made by "
                "trainjob.orbax.save(). Load it yourself, or start over with --fresh."
            )
        plain = jax.tree.map(_plain, state)
        wanted = ocp.checkpoint_utils.construct_restore_args(plain)
        with _quiet(), ocp.Checkpointer(_handler(), multiprocessing_options=_each_for_itself()) as checkpointer:
            found = checkpointer.restore(folder, args=ocp.args.PyTreeRestore(item=plain, restore_args=wanted))
    return jax.tree.map(_as_before, state, found)


def _plain(leaf: Any) -> Any:
    """Orbax writes NumPy's numbers, and does not read them into a tree that has such: Python's take their place."""
    return leaf.item() if isinstance(leaf, np.generic) else leaf


def _as_before(leaf: Any, found: Any) -> Any:
    return leaf.dtype.type(found) if isinstance(leaf, np.generic) else found


def _shape_of(state: Any) -> str:
    """In the same words on all ranks that save the same."""
    leaves, structure = jax.tree.flatten(state)
    return f"{structure} {[(np.shape(leaf), str(getattr(leaf, 'dtype', ''))) for leaf in leaves]}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Orbax's warnings that what is left out here is left out."""
    logger = logging.getLogger("absl")
    logger.addFilter(_is_news)
    try:
        yield
    finally:
        logger.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return "primary_host=None" not in str(record.msg) and "Skipping merge of OCDBT" not in str(record.msg)


def _each_for_itself() -> Any:
    """Every process makes its own folder: there is none that all see."""
    return ocp.options.MultiprocessingOptions(primary_host=None)


def _handler() -> Any:
    """A file for each piece of an array, named by its place: the folders of all processes are put together by their
    names. Orbax's other form (OCDBT) has to be merged by one process that sees all folders.
    """
    kinds = ocp.type_handlers
    scalars = kinds.ScalarHandler()
    # A registry of our own: Orbax's is changed by what a handler is told of the primary process.
    registry = kinds.create_type_handler_registry(
        *((kind, scalars) for kind in (int, float, bytes, np.number)),
        (np.ndarray, kinds.NumpyHandler()),
        (str, kinds.StringHandler()),
        (jax.Array, kinds.ArrayHandler(primary_host=None)),
    )
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, type_handler_registry=registry, multiprocessing_options=_each_for_itself()
    )
