"""The room that jobs share: who is served first, who gives, and who gives nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.core import T0, make_spec, seconds
from trainjob_api import quantity
from trainjob_operator.core.model import Standing
from trainjob_operator.core.size.room import gift_of, given_to, requests_of


def asks(uid: str, lacks: int = 2, **fields: Any) -> Standing:
    return Standing(**{"name": uid, "uid": uid, "created_at": T0, "lacks": lacks, "content": False, **fields})


def trains(uid: str, above: int = 2, **fields: Any) -> Standing:
    return Standing(**{"name": uid, "uid": uid, "created_at": T0, "above": above, **fields})


def gifts(*jobs: Standing) -> dict[str, tuple[str, int]]:
    """By giver: to whom, and how many, if each decides by itself."""
    found = {job.uid: gift_of(job, [other for other in jobs if other is not job]) for job in jobs}
    return {uid: (gift.to.uid, gift.workers) for uid, gift in found.items() if gift is not None}


GPU = (("nvidia.com/gpu", Decimal(1)),)
CASES: dict[str, tuple[list[Standing], dict[str, tuple[str, int]]]] = {
    "what it lacks": ([asks("b"), trains("a", 3)], {"a": ("b", 2)}),
    "nobody lacks anything": ([asks("b", 0), trains("a")], {}),
    "all together would not suffice": ([asks("b", 3), trains("a", 1), trains("c", 1)], {}),
    "together they suffice": ([asks("b", 3), trains("a", 2), trains("c", 2, created_at=T0 + seconds(1))],
                              {"c": ("b", 2), "a": ("b", 1)}),
    "the youngest gives first": ([asks("b", 1), trains("a"), trains("c", created_at=T0 + seconds(1))],
                                 {"c": ("b", 1)}),
    "the least urgent gives first": ([asks("b", 1, priority=5), trains("a", priority=1),
                                      trains("c", priority=3, created_at=T0 + seconds(1))], {"a": ("b", 1)}),
    "none to a less urgent one": ([asks("b", priority=1), trains("a", priority=2)], {}),
    "the most urgent is served first": ([asks("b"), asks("d", priority=1), trains("a", 2)], {"a": ("d", 2)}),
    "then the oldest": ([asks("b", created_at=T0 + seconds(1)), asks("d"), trains("a", 2)], {"a": ("d", 2)}),
    "one that cannot be served bars nobody": ([asks("b", 9), asks("d", 1, created_at=T0 + seconds(1)), trains("a")],
                                              {"a": ("d", 1)}),
    "what is under way counts": ([asks("b"), trains("a", 2), trains("c", 0, gave_to="b", gave=2)], {}),
    "a rest is given by another": ([asks("b"), trains("a", 2), trains("c", 0, gave_to="b", gave=1)], {"a": ("b", 1)}),
    "what was given and is used counts no second time": (
        [asks("b", 1, has=1), trains("a", 2), trains("c", 0, gave_to="b", gave=1)], {"a": ("b", 1)}),
    "what had room before is no use of it": (
        [asks("b", 2, has=2), trains("a", 2), trains("c", 0, gave_to="b", gave=2, gave_beside=2)], {}),
    "a gang that gave its pods back uses nothing": (
        [asks("b", 3, has=0), trains("a", 2), trains("c", 0, gave_to="b", gave=1, gave_beside=1)], {"a": ("b", 2)}),
    "who gives gives to nobody else": ([asks("b"), trains("a", 2, gave_to="d", gave=1)], {}),
    "not again in vain": ([asks("b"), trains("a", in_vain=frozenset({"b"}))], {}),
    "workers that are too small": ([asks("b", requests=GPU), trains("a")], {}),
    "workers that are large enough": ([asks("b", requests=GPU), trains("a", requests=GPU)], {"a": ("b", 2)}),
    "one that waits for more itself does without": ([asks("b", 1), trains("a", 0, wants=True), trains("c", 1)],
                                                    {"a": ("b", 0), "c": ("b", 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_who_gives_what(name: str) -> None:
    jobs, expected = CASES[name]
    assert gifts(*jobs) == expected
    assert gifts(*reversed(jobs)) == expected, "the order in which they are known changes nothing"


STANDINGS = st.lists(
    st.builds(
        Standing,
        name=st.just("x"),
        uid=st.uuids().map(str),
        created_at=st.integers(0, 5).map(lambda n: T0 + seconds(n)),
        priority=st.integers(0, 3),
        lacks=st.integers(0, 4),
        above=st.integers(0, 4),
        wants=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda job: job.uid,
)


@given(STANDINGS)
def test_nobody_gives_more_than_it_can_do_without_and_nobody_gets_more_than_it_lacks(jobs: list[Standing]) -> None:
    jobs = [Standing(name="x", uid=job.uid, created_at=job.created_at, priority=job.priority, lacks=job.lacks)
            if job.lacks else job for job in jobs]  # fmt: skip
    by_uid = {job.uid: job for job in jobs}
    found = gifts(*jobs)
    for uid, (_, workers) in found.items():
        assert workers <= by_uid[uid].above
    for asker in {to for to, _ in found.values()}:
        got = sum(workers for to, workers in found.values() if to == asker)
        assert got in (0, by_uid[asker].lacks), "all that it lacks, or nothing that trains"


def test_what_was_given_is_counted_for_one() -> None:
    jobs = [trains("a", gave_to="b", gave=2), trains("c", gave_to="b", gave=1), trains("d", gave_to="e", gave=4)]
    assert given_to("b", jobs) == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", "2"), ("500m", "0.5"), ("1.5Gi", "1610612736"), ("2e3", "2000"), ("20G", "20000000000"), ("3E", "3e18"),
     ("100u", "0.0001"), ("1k", "1000"), ("2E-1", "0.2"), ("many", None), ("", None)],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_does(text: str, value: str | None) -> None:
    assert quantity.value_of(text) == (None if value is None else Decimal(value))


def test_a_worker_requests_what_its_containers_do() -> None:
    template = {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4"}, "requests": {"cpu": "2"}},
                },
                {"name": "sidecar", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
                {"name": "odd", "resources": {"requests": ["cpu"]}},
            ]
        }
    }
    assert dict(requests_of(make_spec(template=template))) == {
        "cpu": Decimal("2.5"), "memory": Decimal(2**30), "nvidia.com/gpu": Decimal(1),
    }  # fmt: skip
