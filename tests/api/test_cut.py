"""A text that was cut shows it, and is still known as the same."""

from __future__ import annotations

from trainjob_api import contract, cut, same_error


def test_what_is_left_out_stands_as_three_dots() -> None:
    assert cut.within("abc", 3) == "abc"
    assert cut.within("abcdefgh", 6) == "abc..."


def test_a_cause_that_was_cut_in_the_history_is_the_same_as_the_whole_one() -> None:
    whole = "rank 1 on mine-1 raised E: " + "x" * 300
    kept = cut.within(whole, contract.ENDED_LIMIT)
    assert len(kept) == contract.ENDED_LIMIT and kept.endswith("x...")
    assert same_error.same_sentence(kept, whole) and same_error.same_sentence(whole.replace("mine-1", "mine-12"), kept)
    assert not same_error.same_sentence(kept, whole.replace("raised E", "raised F"))
