"""Generators of random numbers that a module seeds when it is imported: a plain rank goes on from there, and a fork,
which is seeded anew (`becoming`), would not.

Asked by `fitness`, about the imports of a `parent`. Libraries that only draw numbers then are no matter.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, Optional, Set

from trainjob.session.warm import generators

_CHOSEN = 2**32
"""Below it lie the seeds that people choose. Of torch's own, which have 53 bits, next to none does."""
_ROUNDS, _ROUND = 200, 624 * 32
"""So often Python's generator is renewed by numbers that are only drawn, and after so many bits of them."""


class Seeds:
    """Of this process, since this was made."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._there = _others()

    def given(self) -> Optional[str]:
        """Whose numbers are seeded; None: nobody's."""
        return "Python" if self._is_seeded() else next(iter(sorted(_others() - self._there)), None)

    def _is_seeded(self) -> bool:
        """Python's generator does not tell: whether it has come to another place than who draws comes to."""
        now = random.getstate()[1][:-1]  # the last says how many of the round are drawn
        drawn = random.Random()
        drawn.setstate(self._python)
        for _ in range(_ROUNDS):
            if drawn.getstate()[1][:-1] == now:
                return False
            drawn.getrandbits(_ROUND)
        return True


def _others() -> Set[str]:
    """Of those that are there: who has been given a seed."""
    found: Set[str] = set()
    modules: Dict[str, Any] = sys.modules
    torch, generator = modules.get("torch"), generators.common()
    # NumPy's keeps what its own seed was made of.
    if generator is not None and getattr(generator, "_seed_seq", generator) is None:
        found.add("NumPy")
    seed_of = getattr(getattr(torch, "default_generator", None), "initial_seed", None)
    if seed_of is not None and seed_of() < _CHOSEN:
        found.add("torch")
    return found
