"""Small worlds in full: a job of two workers, whatever its parts do in whatever order, and one fault of each kind at each
moment.

Here the usual order of things with the fault everywhere; without agents, also with one more thing out of order.
`make model DEPTH=n` takes all orders up to n steps and prints the numbers.
"""

from __future__ import annotations

import pytest

from support.model.broken import Broken
from support.model.search import Search, worlds
from trainjob_operator.core.ends import verdict

STEPS = 100
"""No world is deeper than this."""
WORLDS = dict(worlds(1))


@pytest.mark.parametrize("name", WORLDS)
def test_the_promises_hold_at_every_moment_and_the_job_ends_from_each(name: str) -> None:
    found = Search(STEPS, deviations=1 if name.startswith("plain") else 0).run(WORLDS[name])
    assert found.complete and found.states > 25, found
    assert {"Complete"} <= set(found.ends) <= {"Complete", "Failed", "gone"}


def test_a_broken_promise_is_told_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "may_have_completed", lambda turn, incident: False)
    with pytest.raises(Broken, match="Complete on storage, and Failed in status") as error:
        Search(STEPS, deviations=0).run(WORLDS["agents, agent restart, maxFailures 0"])
    way = str(error.value).splitlines()
    assert way[-1].endswith("FAULT agent restart: the container of digits-0 starts again")
    assert way[-2].endswith("the end record is written")
