"""Generators of random numbers that a module seeds when it is imported: a plain rank goes on from there, and a fork,
which is seeded anew (`becoming`), would not.

Asked by `fitness`, about the imports of a `parent`. Libraries that only draw numbers then are no matter.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Dict, Iterator, Optional, Set

_CHOSEN = 2**32
"""Below it lie the seeds that people choose. Of torch's own, which have 53 bits, next to none does."""


class Seeds:
    """Of this process, since this was made."""

    def __init__(self) -> None:
        self._python = False
        self._there = _others()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of the imports meanwhile: Python's generator does not tell whether it was seeded."""
        module: Any = random
        plain = module.seed

        def seed(a: Any = None, *rest: Any, **named: Any) -> None:
            self._python = self._python or a is not None
            plain(a, *rest, **named)

        module.seed = seed
        try:
            yield
        finally:
            module.seed = plain

    def given(self) -> Optional[str]:
        """Whose numbers are seeded; None: nobody's."""
        return "Python" if self._python else next(iter(sorted(_others() - self._there)), None)


def _others() -> Set[str]:
    """Of those that are there: who has been given a seed."""
    found: Set[str] = set()
    modules: Dict[str, Any] = sys.modules
    numpy, torch = modules.get("numpy.random"), modules.get("torch")
    # NumPy's keeps what its own seed was made of.
    generator = getattr(getattr(getattr(numpy, "mtrand", None), "_rand", None), "_bit_generator", None)
    if generator is not None and getattr(generator, "_seed_seq", generator) is None:
        found.add("NumPy")
    seed_of = getattr(getattr(torch, "default_generator", None), "initial_seed", None)
    if seed_of is not None and seed_of() < _CHOSEN:
        found.add("torch")
    return found
