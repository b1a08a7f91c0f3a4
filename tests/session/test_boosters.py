"""Boosters of libraries that boost trees: the newest checkpoint's is read once, in whatever order a loop asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.fake_agent import FakeAgent
from trainjob.integrations.boosters import Newest

StartAgent = Callable[..., FakeAgent]


class Library:
    """Of a booster that is its number of rounds, in a file."""

    def __init__(self) -> None:
        self.reads = 0
        self.newest = Newest("model", self.read, len)

    def read(self, path: str) -> list[int]:
        self.reads += 1
        return list(range(int(Path(path).read_text())))


@pytest.fixture
def resumed(start_agent: StartAgent, tmp_path: Path) -> Library:
    folder = tmp_path / "1-1-9"
    folder.mkdir()
    (folder / "model").write_text("30")
    start_agent(resume_from=folder, attempt=2)
    return Library()


def test_a_training_that_begins_has_no_booster_and_all_rounds(start_agent: StartAgent) -> None:
    start_agent()
    library = Library()
    assert (library.newest.load(), library.newest.rounds_left(100), library.reads) == (None, 100, 0)


@pytest.mark.parametrize("rounds_first", [True, False])
def test_the_booster_is_read_once_for_both(resumed: Library, rounds_first: bool) -> None:
    newest = resumed.newest
    if rounds_first:
        assert newest.rounds_left(100) == 70
        assert len(newest.load() or ()) == 30
    else:
        assert len(newest.load() or ()) == 30
        assert newest.rounds_left(100) == 70
    assert (newest.rounds_left(20), resumed.reads) == (0, 1)


def test_who_asks_again_gets_a_booster_of_its_own(resumed: Library) -> None:
    first, second = resumed.newest.load(), resumed.newest.load()
    assert first == second and first is not second
