"""Whether the ranks train apart although they are meant to train one model: a `prepare_model()` that was forgotten.

The rule: a rank other than 0 has taken steps of an optimizer, and in no process group of it was a collective ever
called. DDP, FSDP, sharded and hand-written averaging all call them; evaluation takes no steps; where rank 0 alone
trains, no other rank does. Rank 1 looks, so that there is one warning. Called by `calls`, in report() and
get_checkpoint(); costs a count a step until it is decided, and nothing afterwards. Must not import torch: who trains
has done so.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Optional

from trainjob.session.context import TrainContext

LOOKING_RANK = 1
_OTHER_WAYS = ("horovod.torch", "torch_xla", "mpi4py", "deepspeed")
"""Libraries that average without torch's process groups, or in their own way."""
WORDS = (
    "The ranks train apart: this rank takes optimizer steps and has never exchanged anything with the others, so each "
    "trains a model of its own on its part of the data, and the job keeps rank 0's. Make the model with model = "
    "trainjob.prepare_model(model) before its optimizer (in Lightning: strategy and plugins, in Accelerate: "
    "Accelerator(cpu=True) without GPUs). If they are meant to train apart: warnings.filterwarnings('ignore', 'The "
    "ranks train apart')."
)


class Watch:
    """Of one rank."""

    def __init__(self) -> None:
        self._steps = 0
        self._hook: Optional[Any] = None
        self._decided = False

    def look(self, context: TrainContext, *, reports: bool = False) -> None:
        """Begin to watch as soon as there is a torch; with `reports` say what was found."""
        if self._decided:
            return
        if context.world_size < 2 or context.rank != LOOKING_RANK or any(name in sys.modules for name in _OTHER_WAYS):
            self._close()
            return
        optimizers = sys.modules.get("torch.optim.optimizer")
        hook = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if self._hook is None and hook is not None:
            self._hook = hook(self._stepped)
        if not reports or not self._steps:
            return
        exchanged = _collectives()
        self._close()
        if not exchanged:
            warnings.warn(WORDS, stacklevel=4)

    def _stepped(self, *_: Any) -> None:
        self._steps += 1

    def _close(self) -> None:
        self._decided = True
        if self._hook is not None:
            self._hook.remove()


def _collectives() -> bool:
    """Whether one was ever called, in any group; True where nobody can tell."""
    distributed = sys.modules.get("torch.distributed")
    rpc: Any = sys.modules.get("torch.distributed.rpc")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return rpc is not None and bool(getattr(rpc, "_is_current_rpc_agent_set", lambda: False)())
    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        return any(group._get_sequence_number_for_group() for group in world.pg_names)
    except Exception:  # torch's own, of another version
        return True
