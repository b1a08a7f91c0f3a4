"""Which torch is installed, for tests of what an older one does not do (`make test-oldest`)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

import pytest

from trainjob.torch.model import AVERAGES_SHARDS

RELEASE = tuple(map(int, version("torch").split(".")[:2]))


def needs_record_of_gloo() -> None:
    """Skips the test where torch has none."""
    if RELEASE < (2, 11):
        pytest.skip("torch before 2.11 keeps no record of gloo's collectives")


def needs_mean_of_shards() -> None:
    """Skips the test where gloo forms none."""
    if RELEASE < AVERAGES_SHARDS:
        pytest.skip("gloo of this old torch does not average shards")


def without_gloo(lines: Iterable[str]) -> list[str]:
    """Of what a script printed: torch 2.9 and 2.10 tell of each process group on stdout."""
    return [line for line in lines if not line.startswith("[Gloo] Rank ")]
