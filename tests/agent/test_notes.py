"""What members hold travels as hashes and bits; each note once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.frames import came
from trainjob.agent.attempts import notes
from trainjob.agent.attempts.join import Request
from trainjob.agent.attempts.notes import Notes
from trainjob.agent.wire import packed
from trainjob.agent.wire.from_leader import FROM_LEADER, Chosen, Joined, Resume
from trainjob.agent.wire.from_member import NoteIs
from trainjob.agent.wire.packed import Held, pack, unpack

NOTE = {"id": "1-1-3", "files": [[f"part-{n}", 1, n] for n in range(20)], "metrics": {"loss": float("nan")}}
TELLABLE = unpack(pack(NOTE))
"""As it comes over the wire."""


@given(st.sets(st.integers(0, 19)))
def test_the_files_that_are_held_come_back(places: set[int]) -> None:
    held = Held.of(TELLABLE, [f"part-{n}" for n in places])
    assert Held.of_json(held.to_json()) == held
    assert held.paths(TELLABLE) == [f"part-{n}" for n in sorted(places)]


@pytest.mark.parametrize("row", [[], ["1-1-1"], [1, "0" * 32, "0"], ["1-1-1", "short", "0"], ["1-1-1", "0" * 32, "x"]])
def test_what_is_no_held_checkpoint_is_refused(row: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Held.of_json(row)


def test_a_packed_blob_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PACKED_LIMIT", 1000)
    assert unpack(pack(["x" * 900])) == ["x" * 900]
    for wrong in (pack(["x" * 1001]), pack([1])[:-3], b"nonsense", b""):
        with pytest.raises(ValueError, match=r"blob"):
            unpack(wrong)


def test_the_answer_of_the_join_comes_back() -> None:
    chosen = Chosen("1-1-3", "staged", None, TELLABLE, ("part-7",))
    answer = Joined(1, False, ("a:1",), "a", 29500, None, Resume(chosen, {"a:1": 0b101}, (TELLABLE,)))
    back = came(FROM_LEADER, answer)
    assert back == answer and back.resume.holder_paths() == {"a:1": ["part-0", "part-2"]}
    none = answer._replace(resume=Resume(None, {}, ()))
    assert came(FROM_LEADER, none) == none and none.resume.holder_paths() == {}


class Members:
    """Rank 0's agent and those it asks. `answers`: what each member says to a question; None: nothing."""

    def __init__(self, own: bytes | None, answers: dict[int, bytes | None]) -> None:
        self.asked: list[int] = []
        self._answers = answers
        saving: Any = SimpleNamespace(shown_note=lambda sha: own)
        self.notes = Notes(saving, self._tell)

    def _tell(self, index: int | None, word: Any) -> None:
        assert index is not None
        self.asked.append(index)
        blob = self._answers[index]
        if blob is not None:
            asyncio.get_running_loop().call_soon(self.notes.came, NoteIs(word.sha, blob))

    def candidates(self, *requests: Request) -> list[dict[str, Any]]:
        return asyncio.run(self.notes.candidates(requests))


def holding(index: int, *places: int) -> Request:
    return Request(index, f"10.0.0.{index}:1", (Held.of(TELLABLE, [f"part-{n}" for n in places]),))


WHOLE = [{"note": TELLABLE, "held": ["part-1", "part-2"]}]


def test_a_note_that_we_have_is_asked_of_nobody() -> None:
    here = Members(pack(NOTE), {})
    assert here.candidates(holding(0, 1), holding(1, 2)) == WHOLE
    assert here.asked == []


def test_a_note_is_asked_of_one_member_and_of_the_next_if_that_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "ANSWER_S", 0.05)
    lies = pack({**NOTE, "id": "1-1-9"})
    here = Members(None, {1: None, 2: b"", 3: lies, 4: b"nonsense", 5: pack(NOTE), 6: pack(NOTE)})
    members = [Request(0, "10.0.0.0:1"), holding(1, 1), *(holding(n, 2) for n in range(2, 7))]
    assert here.candidates(*members) == WHOLE
    assert here.asked == [1, 2, 3, 4, 5]


def test_a_checkpoint_whose_note_nobody_shows_is_none() -> None:
    here = Members(None, {1: b""})
    assert here.candidates(holding(1, 1)) == [] and here.asked == [1, 1, 1]


def test_bits_follow_the_note_that_was_chosen() -> None:
    """Storage's manifest names the files in another order."""
    here = Members(pack(NOTE), {})
    members = (holding(0, 1), holding(1, 2))
    here.candidates(*members)
    stored = {**TELLABLE, "files": TELLABLE["files"][::-1]}
    for note in (TELLABLE, stored):
        bits = here.notes.holders(members, Chosen("1-1-3", "staged", None, note))
        assert {a: packed.paths_of(note, found) for a, found in bits.items()} == {
            "10.0.0.0:1": ["part-1"],
            "10.0.0.1:1": ["part-2"],
        }
    assert here.notes.holders(members, None) == {}
    assert here.notes.holders(members, Chosen("1-1-2", "staged", None, TELLABLE)) == {}
