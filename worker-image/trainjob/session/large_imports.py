"""Large imports without the garbage collector, which finds nothing in them and takes a sixth of their time.

`rank` calls `quiet` at boot: from then on it holds for torch. Launchers import what drives a job inside `quietly`. What
such an import made counts as old afterwards. It is not left frozen (`gc.freeze`), for with it would be what the user's
program has by then, and a model among that could never be collected. Must not import torch, nor hold in a rank for
anything but the modules named here.
"""

from __future__ import annotations

import gc
import sys
import types
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Callable, Iterator, Optional

LARGE = ("torch", "torch._dynamo")
"""The second is imported by the first optimizer."""


class QuietFinder:
    """Finds what Python's own finder finds; the collector is off while one of LARGE runs its body."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Optional[types.ModuleType] = None) -> Optional[ModuleSpec]:
        """As importlib asks it. None: another finder's affair."""
        if name not in LARGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            # On the one loader, not by another class: tools look at a loader's type.
            spec.loader.exec_module = _quietly(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec


@contextmanager
def quietly() -> Iterator[None]:
    """The collector is off inside, and afterwards as it was."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # A user's loop that keeps the collector off for itself finds it off; inside another large import it stays off.
        if was_on:
            _make_old()
            gc.enable()


def _quietly(run: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
    def run_quietly(module: types.ModuleType) -> None:
        with quietly():
            run(module)

    return run_quietly


def _make_old() -> None:
    """To the oldest generation with everything, by way of the frozen ones: else the next young collection goes
    through it all.
    """
    if not gc.get_freeze_count():  # what the user's program froze stays frozen
        gc.freeze()
        gc.unfreeze()


def quiet() -> None:
    """For this process, from now on."""
    sys.meta_path.insert(0, QuietFinder)
