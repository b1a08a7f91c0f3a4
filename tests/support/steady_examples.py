"""Property tests draw the same examples wherever they run.

Hypothesis puts constants of the project's own code among its examples: of those modules that happen to be loaded, so that
each pytest worker drew others, and what was red in one was green alone. Here they are those of the contract and of the
operator's rules, always. Called by `conftest.py`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("operator/trainjob_api/*.py", "operator/trainjob_operator/core/**/*.py")


@lru_cache
def constants() -> Any:
    """Read once, when the first example asks for one."""
    found = constants_ast.Constants()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            found |= constants_ast._constants_from_source(path.read_bytes(), limit=True)
    empty = type(providers._local_constants)(
        integers=providers.SortedSet(),
        floats=providers.SortedSet(key=providers.float_to_int),
        bytes=providers.SortedSet(),
        strings=providers.SortedSet(),
    )
    return empty | found


def pin() -> None:
    """From now on the pool is this one, whatever is imported."""
    providers._get_local_constants = constants
