"""How the clock on recoveries and the job's books are shown."""

from __future__ import annotations

from datetime import UTC, datetime

from support import pages
from support.isolation import ROOT
from support.jobs import condition
from trainjob.screen import clock
from trainjob_api.v1alpha1 import Attempt, Condition, Goodput, HistoryEntry, PartsMs, Seconds, TrainJobStatus

AT = datetime(2030, 1, 1, tzinfo=UTC)
RUNNING = Attempt(
    number=2,
    state="Running",
    started_at=AT,
    members="0-1",
    workers=2,
    world_size=2,
    cause="KilledBySignal",
    parts_ms=PartsMs(detected=100, waited=0, decided=100, stopped=100, joined=100, forked=0, group=200, first_step=400),
)
STATUS = TrainJobStatus(
    attempt=RUNNING,
    history=[
        HistoryEntry(
            attempt=1,
            cause="Started",
            end_cause="KilledBySignal",
            started_at=AT,
            world_size=4,
            parts_ms=PartsMs(decided=100, first_step=1900),
        )
    ],
    goodput=Goodput(
        at=AT,
        settled_at=AT,
        ratio=0.75,
        summary="75.0%",
        largest_loss="down",
        seconds=Seconds(starting=5.0, productive=75.0, lost=8.0, down=12.0, suspended=60.0),
    ),
)


def test_each_start_has_a_row_and_a_bar_drawn_to_the_same_scale() -> None:
    shown = clock.lines(STATUS)
    assert shown[0].split() == [
        *("ATTEMPT", "BEGAN", "BY", "RANKS", "DETECTED", "WAITED", "DECIDED", "STOPPED", "JOINED", "FORKED"),
        *("GROUP", "RESTORED", "STEP", "TOTAL"),
    ]
    assert shown[2].split()[:5] == ["2", "KilledBySignal", "2", "100", "ms"]
    assert shown[2].endswith("1000 ms")
    bars = [line for line in shown if "|" in line]
    assert bars == ["      1   |" + "e" * 2 + "1" * 38, "      2   |ddeessjjgggg11111111"]


def test_the_page_shows_what_is_printed() -> None:
    def start(number: int, cause: str, **parts: int) -> HistoryEntry:
        return HistoryEntry(attempt=number, cause=cause, started_at=AT, world_size=2, parts_ms=PartsMs(**parts))

    first = start(1, "Started", decided=62, stopped=51, joined=64, forked=46, group=820, restored=14, first_step=31)
    known = {"detected": 23, "waited": 0, "decided": 12, "stopped": 34, "joined": 28, "forked": 18, "group": 790}
    second = start(2, "KilledBySignal", **known, restored=11, first_step=30)
    example = next(block for block in pages.blocks(ROOT / "docs" / "recovery.md") if block.language == "text")
    assert example.body.splitlines() == [line.rstrip() for line in clock.lines(TrainJobStatus(history=[first, second]))]


def test_every_part_has_its_column_in_the_order_of_time() -> None:
    assert [name for name, _, _ in clock.PARTS] == list(PartsMs.model_fields)


def test_the_largest_loss_comes_first_and_suspended_time_last() -> None:
    said = "goodput 75.0% of 2m40s: productive 1m15s, down 12s, lost 8.0s, starting 5.0s, suspended 1m00s"
    assert clock.lines(STATUS)[-1] == said


def test_a_figure_that_was_not_written_for_a_while_says_what_it_spans() -> None:
    assert STATUS.goodput is not None
    at = STATUS.goodput.at.timestamp()
    assert clock.goodput(STATUS, at + 9)[0].startswith("goodput 75.0% of 2m40s: ")
    assert clock.goodput(STATUS, at + 70)[0].startswith("goodput 75.0% of its first 2m40s, up to 1m10s ago: ")
    over = STATUS.model_copy(update={"conditions": [Condition.model_validate(condition("Failed", "True", "x"))]})
    assert clock.goodput(over, at + 70) == clock.goodput(STATUS)


def test_of_a_killed_launcher_the_figure_is_as_of_its_last_word() -> None:
    assert clock.goodput(STATUS, killed=True)[0].startswith("goodput 75.0% of its first 2m40s, as of its launcher's")


def test_ranks_that_were_no_forks_say_why() -> None:
    began = {"number": 1, "state": "Running", "cause": "Started", "members": "0-1", "workers": 2, "worldSize": 2}

    def said(**forks: object) -> list[str]:
        attempt = Attempt.model_validate({**began, "startedAt": "2030-01-01T00:00:00Z", "forks": forks})
        return clock.forks(TrainJobStatus(attempt=attempt))

    assert said(ranks=2) == ["ranks started as forks: 2"]
    assert said(ranks=1) == ["ranks started as forks: 1"]
    assert said(ranks=1, reason="it has a GPU")[1] == "ranks started in new interpreters: it has a GPU"


def test_the_same_as_json() -> None:
    first, second, books = clock.as_json(STATUS)
    assert (first["attempt"], first["totalMs"], second["partsMs"]["firstStep"]) == (1, 2000, 400)
    assert (first["worldSize"], second["worldSize"]) == (4, 2), "it went on smaller"
    assert (books["kind"], books["largestLoss"], books["seconds"]["down"]) == ("goodput", "down", 12.0)


def test_nothing_known_is_nothing_shown() -> None:
    assert clock.lines(TrainJobStatus()) == [] and clock.as_json(TrainJobStatus()) == []
