"""Frames as types: what is left out, what is passed over, and what a refusal says."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest

from support.frames import as_sent
from trainjob_api.rank_messages import FROM_RANK, Collective, Offer
from trainjob_api.typed import TEXT_LIMIT, BadMessage, Vocabulary

REPORT = Collective(3, "report", metrics={"loss": 0.5}, checkpoint=Offer("/tmp/x"), blob=b"state")


def test_what_has_its_default_is_not_sent() -> None:
    message, blob = as_sent(FROM_RANK, REPORT)
    assert message == {
        "op": "collective",
        "n": 3,
        "kind": "report",
        "metrics": {"loss": 0.5},
        "checkpoint": {"path": "/tmp/x"},
    }
    assert blob == b"state"


def test_what_nobody_knows_is_passed_over() -> None:
    message, blob = as_sent(FROM_RANK, REPORT)
    assert FROM_RANK.parse({**message, "newer": 1, "blob": "no blob of ours"}, blob) == REPORT


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n": None}, "'collective' makes no sense: n: expected a whole number, found None"),
        ({"n": True}, "n: expected a whole number, found True"),
        ({"n": 10**400}, "n: expected a whole number, found 1000"),
        ({"timeout_s": float("nan")}, "timeout_s: expected a number, found nan"),
        ({"timeout_s": 10**400}, "timeout_s: expected a whole number"),
        ({"stop": 1}, "stop: expected true or false, found 1"),
        ({"kind": "all"}, "kind: expected one of report, barrier, broadcast, found 'all'"),
        ({"checkpoint": {"path": 1}}, "checkpoint: path: expected a text, found 1"),
        ({"checkpoint": {"path": "/x", "mode": "LATER"}}, "checkpoint: mode: expected one of ASYNC, SYNC, NO_UPLOAD"),
        ({"metrics": ["x" * 10**6]}, "metrics: expected an object, found ['xxx"),
    ],
)
def test_a_refusal_names_the_field_and_is_short(wrong: dict[str, Any], says: str) -> None:
    message, _ = as_sent(FROM_RANK, REPORT)
    with pytest.raises(BadMessage) as refusal:
        FROM_RANK.parse({**message, **wrong})
    assert says in str(refusal.value) and len(str(refusal.value)) <= TEXT_LIMIT


def test_what_is_missing_is_named() -> None:
    with pytest.raises(BadMessage, match="'collective' makes no sense: kind: it is missing"):
        FROM_RANK.parse({"op": "collective", "n": 1})
    with pytest.raises(BadMessage, match="unknown message 'nothing'"):
        FROM_RANK.parse({"op": "nothing"})
    with pytest.raises(BadMessage, match="unknown message"):
        FROM_RANK.parse({"op": ["collective"]})


class Tree(NamedTuple):
    """Of trees."""

    inside: tuple[Tree, ...] = ()  # type: ignore[misc]


def test_what_is_nested_too_deeply_is_refused() -> None:
    trees: Vocabulary[Tree] = Vocabulary({"tree": Tree})
    message: dict[str, Any] = {"op": "tree"}
    inside: dict[str, Any] = {}
    for _ in range(sys.getrecursionlimit()):
        inside = {"inside": [inside]}
    with pytest.raises(BadMessage):
        trees.parse({**message, **inside})
