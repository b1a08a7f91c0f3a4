"""All mistakes that are planted. A new rule, fence or order comes with one more."""

from __future__ import annotations

from support.mutation import (
    agents,
    books,
    checkpoints,
    core_1,
    core_2,
    learned,
    nodes,
    plain,
    runtime,
    shared,
    shell,
    spares,
    trackers,
)
from support.mutation.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *core_1.MUTANTS,
    *core_2.MUTANTS,
    *books.MUTANTS,
    *learned.MUTANTS,
    *plain.MUTANTS,
    *spares.MUTANTS,
    *nodes.MUTANTS,
    *shell.MUTANTS,
    *agents.MUTANTS,
    *checkpoints.MUTANTS,
    *trackers.MUTANTS,
    *runtime.MUTANTS,
    *shared.MUTANTS,
)

__all__ = ["MUTANTS", "Mutant"]
