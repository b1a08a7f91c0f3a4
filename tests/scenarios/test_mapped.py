"""A large checkpoint is not read before it is needed: files open in place, and torch maps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scenario import Stage

pytestmark = pytest.mark.slow
LOOP = Path(__file__).parent / "loops" / "mapped.py"


def test_a_restarted_rank_maps_the_file_that_its_agent_keeps(stage: Stage) -> None:
    told = stage.run(stage.job(script=LOOP, max_failures=2))
    assert told.status.holds("Complete"), told.text()
    for rank in (0, 1):
        assert (stage.notes / f"mapped-{rank}").read_text() == "True [1.0, 2.0, 3.0]"
        assert (stage.notes / f"again-{rank}").read_text() == "[0.0, 1.0, 2.0]"
