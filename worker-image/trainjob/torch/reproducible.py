"""`enable_reproducibility`: the same seeds, the same kernels and, after a restart, the same random numbers.

Called by user code before the model is made. Registers the rank's random states with `rank_state`, so that they travel
with each checkpoint; `loader` draws its own numbers from seeds of their own (`Seeded`), so that loading a batch never
depends on what was drawn before; `model` fixes DDP's bucket order.

All ranks start with the same seed, so that weights, random_split() and the like agree between them. Once the model is
prepared (or the first batch of a prepared loader is handed out) each rank has a stream of its own: dropout masks and
random batches that are the same on all ranks would be one rank's work done many times.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from trainjob.session import rank_state
from trainjob.session.arguments import told
from trainjob.torch.place import place

PROVIDER = "random"


class _State:
    def __init__(self) -> None:
        self.seed: Optional[int] = None
        self.pending: Optional[Dict[str, Any]] = None
        """States of the resumed checkpoint, set again when the first batch is handed out: set-up code draws too."""
        self.apart = False
        """The rank has a stream of its own, or is not to have one."""
        self.alike = False
        """All ranks are to draw the same for good."""


_state = _State()


@told
def enable_reproducibility(seed: int = 0, *, same_on_all_ranks: bool = False) -> None:
    """Seed python, numpy and torch, choose deterministic algorithms, and keep random states with each checkpoint.

    `seed`: any whole number, the same on all ranks.

    Until the model is prepared all ranks draw the same numbers (weights, random_split()); from then on each rank draws
    its own (dropout, random batches), rank 0 as if it were alone. `same_on_all_ranks=True`: all draw the same for good.

    With it, a deterministic loop at a fixed number of ranks gives the same losses with failures as without, bit for
    bit, when it resumes from get_checkpoint(). At another number of ranks, those that were there continue with their
    random numbers, and new ones begin streams that nobody drew from before. Operations without a deterministic
    implementation raise. numpy Generators and torch.Generators of the user's own are the user's to save.

    ```python
    trainjob.enable_reproducibility(seed=7)
    model = trainjob.prepare_model(Net())
    ```
    """
    import torch

    place()
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"enable_reproducibility(seed={seed!r}): a whole number of 0 or more")
    _state.seed = seed
    _state.apart = _state.alike = same_on_all_ranks
    # cuBLAS reads it when its handle is made: before the first matrix product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _seed_all(seed, gpus=True)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    rank_state.register(PROVIDER, _take, _bring_back)


def seed() -> Optional[int]:
    """The seed, or None when enable_reproducibility() was not called."""
    return _state.seed


def go_apart() -> None:
    """Set-up is over: this rank draws its own numbers from now on. `model` and `loader` call it; the first counts."""
    if _state.seed is None or _state.apart:
        return
    _state.apart = True
    rank = place().rank
    if rank > 0:
        _seed_all(derived("rank", rank), gpus=True)


def before_first_batch() -> None:
    """Set the resumed states once more; `loader` calls it when a training pass is about to hand out a batch."""
    go_apart()
    if _state.pending is not None:
        _set(_state.pending)


def passed_first_batch() -> None:
    """The pass continued: training has begun, the resumed states have done their work."""
    _state.pending = None


def derived(*parts: object) -> int:
    """A seed that depends on the job's seed and `parts` alone, on any machine."""
    digest = hashlib.blake2b(repr((_state.seed, *parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def drawing_from(seed_value: int) -> Iterator[None]:
    """Python's, numpy's and torch's CPU generators seeded inside the block, and as they were after it."""
    kept = _take(cuda=False)
    _seed_all(seed_value)
    try:
        yield
    finally:
        _set(kept)


def seed_generators(seed_value: int) -> None:
    """Seed this process's generators: in a data loader's worker process."""
    _seed_all(seed_value)


def reset() -> None:
    """Forget the seed and pending states: for tests."""
    global _state
    _state = _State()


def _numpy() -> Optional[Any]:
    # numpy that nobody imported has no state worth saving, but torch brings it along wherever it is installed.
    return sys.modules.get("numpy")


def _seed_all(value: int, gpus: bool = False) -> None:
    """`gpus`: their generators too."""
    import torch

    random.seed(value)
    (torch.manual_seed if gpus else torch.default_generator.manual_seed)(value)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(value % 2**32)


def _take(cuda: bool = True) -> Dict[str, Any]:
    import torch

    numpy = _numpy()
    on_gpu = cuda and torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        # Of the current device: asking the others would put a context on each of them.
        "cuda": torch.cuda.get_rng_state() if on_gpu else None,
    }


def _set(states: Dict[str, Any]) -> None:
    import torch

    random.setstate(states["python"])
    numpy = _numpy()
    if numpy is not None and states["numpy"] is not None:
        numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _bring_back(saved: rank_state.Saved) -> None:
    here = place()
    if saved.world_size != here.world_size and here.rank == 0:
        before = f"{saved.world_size} rank{'s' if saved.world_size != 1 else ''}"
        warnings.warn(
            f"The checkpoint was taken with {before} and the job has {here.world_size} now: its random numbers "
            "continue, but losses will not repeat those of another number of ranks bit for bit.",
            stacklevel=2,
        )
    if saved.rank != here.rank and not _state.alike:
        # A rank that was not there: never a stream that was drawn from before, and the same each time it is resumed.
        _seed_all(derived("rank", here.rank, _digest(saved.state)), gpus=True)
        states = _take()
    else:
        states = saved.state if saved.first is None or not _state.alike else saved.first
    _state.pending = states
    _state.apart = True  # the states that come back are each rank's own
    _set(states)


def _digest(states: Dict[str, Any]) -> str:
    numpy = None if states["numpy"] is None else (states["numpy"][1].tolist(), *states["numpy"][2:])
    of = repr((states["python"], states["torch"].tolist(), numpy))
    return hashlib.blake2b(of.encode(), digest_size=16).hexdigest()
