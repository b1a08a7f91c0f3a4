"""When a process that may open no more files is beyond help."""

from __future__ import annotations

import pytest

from trainjob.agent.wire.accepting import AGAIN_S, FAILING_S, Accepting


@pytest.mark.parametrize(
    ("moments", "lines", "lasting"),
    [
        ([0.0], 1, False),
        ([0.0, 1.0, 2.0], 1, False),
        ([0.0, FAILING_S - 0.1], 2, False),
        ([float(second) for second in range(int(FAILING_S) + 1)], 1, True),
        ([*map(float, range(10)), *(10.0 + AGAIN_S + second for second in range(10))], 2, False),
    ],
    ids=["once", "for a moment", "twice", "all the time", "over in between"],
)
def test_it_is_lasting_where_it_does_not_stop(moments: list[float], lines: int, lasting: bool) -> None:
    accepting = Accepting()
    assert sum(accepting.failed(100.0 + moment) for moment in moments) == lines
    assert accepting.is_lasting is lasting
