"""Generators of random numbers that modules make for themselves when they are imported, and give no seed: each plain
rank has others, and forks would all have those of their parent.

Used by `parent` around its imports, and by `becoming` in each fork. Those that are given a seed stay as they are: a
plain rank has the same.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import weakref
from itertools import compress
from typing import Any, Dict, Iterator, List, Set

_WHOLE = 128
"""So many bits NumPy takes of the system for a generator that is given no seed."""


class Unseeded:
    """Of this process, of the imports that were watched."""

    def __init__(self) -> None:
        self._made: Dict[int, weakref.ref[random.Random]] = {}
        self._drawn: Set[int] = set()
        self._python: List[random.Random] = []
        self._numpy: List[Any] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of the imports meanwhile: of Python's generators none tells what it was seeded by."""
        kind: Any = random.Random
        system: Any = random.SystemRandom
        seed, setstate, getrandbits = kind.seed, kind.setstate, system.getrandbits
        watching = True

        def noted_seed(own: random.Random, a: Any = None, *more: Any, **named: Any) -> None:
            seed(own, a, *more, **named)
            self._made.pop(id(own), None)
            if watching and a is None:
                self._made[id(own)] = weakref.ref(own)

        def noted_state(own: random.Random, state: Any) -> None:
            setstate(own, state)
            self._made.pop(id(own), None)

        def noted_bits(own: random.SystemRandom, k: int) -> int:
            bits: int = getrandbits(own, k)
            if watching and k == _WHOLE:
                self._drawn.add(bits)
            return bits

        kind.seed, kind.setstate, system.getrandbits = noted_seed, noted_state, noted_bits
        try:
            yield
        finally:
            kind.seed, kind.setstate, system.getrandbits = seed, setstate, getrandbits
            watching = False  # NumPy keeps the last one under a name of its own

    def find(self) -> None:
        """Those that are there when all is imported: later on the collector may not know them any more."""
        self._python = [each for each in (made() for made in self._made.values()) if each is not None]
        drawn = self._drawn - {_entropy(common())}  # most have that one alone, and looking for others takes a while
        self._numpy = [each for each in _of_numpy() if _entropy(each) in drawn] if drawn else []

    def renew(self) -> None:
        """In a fork."""
        for python in self._python:
            random.Random.seed(python)
        for numpy in self._numpy:
            # With what it makes others of (`spawn`).
            numpy.__setstate__(type(numpy)().__reduce__()[2])


def common() -> Any:
    """NumPy's that all have together, where it is there; it is seeded anew anyway (`becoming`)."""
    shared = getattr(getattr(sys.modules.get("numpy.random"), "mtrand", None), "_rand", None)
    return getattr(shared, "_bit_generator", None)


def _of_numpy() -> List[Any]:
    """All that there are of its own kinds."""
    kind = getattr(sys.modules.get("numpy.random"), "BitGenerator", None)
    if kind is None:
        return []
    objects = gc.get_objects()
    own = [each for each in set(map(type, objects)) if issubclass(each, kind) and each.__module__.startswith("numpy.")]
    return list(compress(objects, map(frozenset(own).__contains__, map(type, objects))))


def _entropy(generator: Any) -> object:
    found = getattr(getattr(generator, "_seed_seq", None), "entropy", None)
    return found if isinstance(found, int) else None
