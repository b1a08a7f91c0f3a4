"""Names and slot ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.core import make_job
from trainjob_operator.core import make
from trainjob_operator.core.pods import naming


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-1,7,9-10", (0, 1, 7, 9, 10)),
        ("7,0-1", (0, 1, 7)),
        ("1,1,0-1", (0, 1)),
        (" 2 , 4-5", (2, 4, 5)),
        ("3-1", ()),
        ("nonsense,-1,2-,5", (5,)),
    ],
)
def test_parse(text: str, slots: tuple[int, ...]) -> None:
    assert naming.parse_slots(text) == slots


@pytest.mark.parametrize(
    ("slots", "text"), [((), ""), ((3,), "3"), ((2, 0, 1), "0-2"), ((0, 2, 3, 9), "0,2-3,9"), ((1, 1), "1")]
)
def test_format(slots: tuple[int, ...], text: str) -> None:
    assert naming.format_slots(slots) == text


@given(st.sets(st.integers(0, 2_000), max_size=200))
def test_there_and_back(slots: set[int]) -> None:
    assert naming.parse_slots(naming.format_slots(slots)) == tuple(sorted(slots))


@given(st.text(alphabet="0123456789-, x", max_size=40))
def test_no_text_stops_it(text: str) -> None:
    assert len(naming.parse_slots(text)) <= naming.SLOTS_LIMIT


def test_a_huge_range_is_cut() -> None:
    assert len(naming.parse_slots("0-9999999999")) == naming.SLOTS_LIMIT


def test_names_and_labels() -> None:
    job = make_job()
    assert naming.pod_name("digits", 12) == "digits-12"
    assert naming.pod_labels(job, 12) == {
        "trainjob.dev/job": "digits",
        "trainjob.dev/slot": "12",
        "trainjob.dev/make": make.of(job.spec),
        "app.kubernetes.io/managed-by": "trainjob",
    }
    assert naming.selector("digits") == "trainjob.dev/job=digits"
    reference = naming.owner_reference(job)
    assert (reference["uid"], reference["controller"], reference["kind"]) == ("job-uid", True, "TrainJob")
