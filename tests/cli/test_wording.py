"""Numbers and times as the CLI prints them."""

from __future__ import annotations

import pytest

from trainjob.screen import wording


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0s"),
        (0.44, "0.4s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (185, "3m05s"),
        (3600, "1h00m"),
        (4330, "1h12m"),
        (183_600, "2d03h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.314, "1.31 s/step"), (0.01237, "12.4 ms/step"), (0.00085, "850 us/step")]
)
def test_a_pace_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert wording.per_step(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_are_binary(count: int, text: str) -> None:
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (0.98333, "0.9833"),
        (1e-7, "1e-07"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (2.5e9, "2.5e+09"),
    ],
)
def test_numbers_keep_four_digits(value: float, text: str) -> None:
    assert wording.number(value) == text


def test_many_metrics_do_not_fill_the_line() -> None:
    assert wording.metrics({f"m{n}": float(n) for n in range(8)}) == "m0=0 m1=1 m2=2 m3=3 m4=4 m5=5 and 2 more"
    assert wording.metrics({}) == ""


def test_nouns_agree_with_their_count() -> None:
    assert [wording.count(1, "worker"), wording.count(2, "worker"), wording.count(2, "process")] == [
        "1 worker",
        "2 workers",
        "2 processes",
    ]


def test_unknown_signals_keep_their_number() -> None:
    assert wording.signal_name(9) == "SIGKILL"
    assert wording.signal_name(250) == "signal 250"


def test_the_sizes_of_an_elastic_job() -> None:
    told = [wording.sizes(found, "rank") for found in ((3,), (1, 2, 3), (2, 4), (2, 4, 8), range(2, 9))]
    assert told == [
        "3 ranks",
        "1 to 3 ranks (elastic)",
        "2 or 4 ranks (elastic)",
        "2, 4 or 8 ranks (elastic)",
        "2 to 8 ranks (elastic)",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (0.4, "0s"), (42, "42s"), (105, "1m45s"), (7200, "2h00m"), (90000, "1d01h")]
)
def test_ages_are_shown_in_one_way(seconds: float, text: str) -> None:
    assert wording.age(1000.0, 1000.0 + seconds) == text
