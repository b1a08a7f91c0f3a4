"""Every planted mistake still fits the source, and names a test that is there. Whether that test catches it, tells
`make mutate`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.mutation import agents, books, checkpoints, core_1, core_2, learned, runtime, shell
from support.mutation.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
AREAS = {core_1: 25, core_2: 25, shell: 12, agents: 15, checkpoints: 12, runtime: 30, books: 11, learned: 10}
"""So many at least."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_fits_the_source_and_its_test_is_there(mutant: Mutant) -> None:
    source = mutant.path(ROOT).read_text()
    changed = mutant.applied(source)
    assert changed != source
    compile(changed, mutant.name, "exec")
    path, _, name = mutant.test.partition("::")
    assert re.search(rf"^def {re.escape(name)}\(", (ROOT / path).read_text(), re.M), f"no test {mutant.test}"


def test_there_are_enough_of_them_everywhere() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
    for area, count in AREAS.items():
        assert len(area.MUTANTS) >= count, area.__name__


def test_a_mistake_that_does_not_fit_any_more_is_told() -> None:
    with pytest.raises(AssertionError, match=r"stands 0 times in a\.py"):
        Mutant("x", "a.py", "not there", "", "t.py::test").applied("something else")
