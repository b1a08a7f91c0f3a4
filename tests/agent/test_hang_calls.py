"""What torch's record of collectives says of ranks that wait for each other."""

from __future__ import annotations

from trainjob.agent.hangs import sentence
from trainjob.agent.hangs.calls import Parting, parting
from trainjob_api.recorded_calls import Call

WORLD = "default_pg"
STACK = "Current thread 0x00007f3c2b5fa740 [python3] (most recent call first):\n"
REDUCES = (
    f'{STACK}  File "/lib/site-packages/torch/distributed/c10d.py", line 9 in all_reduce\n'
    '  File "/w/train.py", line 41 in main'
)
LOADS = f'{STACK}  File "/w/train.py", line 88 in load_batch\n  File "/w/train.py", line 40 in main'


def call(
    number: int, what: str = "all_reduce", sizes: str = "[8] float", group: str = WORLD, ended: bool = True
) -> Call:
    return Call(group, number, what, sizes, ended)


NONE = Call(WORLD, 0, "", "", True)
"""As a rank tells it whose record is whole."""


def waits(number: int, what: str = "all_reduce", sizes: str = "[8] float", group: str = WORLD) -> Call:
    return call(number, what, sizes, group, ended=False)


def test_ranks_that_make_the_same_calls_do_not_part() -> None:
    assert parting({0: [call(1), waits(2)], 1: [call(1), waits(2)]}) is None


def test_nobody_parts_who_waits_for_nobody() -> None:
    assert parting({0: [call(1), call(2)], 1: [call(1)]}) is None
    assert parting({}) is None and parting({0: [], 1: []}) is None and parting({0: [NONE], 1: [NONE]}) is None


def test_one_that_has_left_a_call_out() -> None:
    ranks = {rank: [call(20), waits(21)] for rank in range(8)}
    ranks[3] = [call(19), call(20)]
    found = parting(ranks)
    assert found == Parting(
        "rank 3 has called 20 collectives of the default group, ranks 0, 1, 2, 4, 5, 6, 7 21 (the last: all_reduce [8] "
        "float)",
        (3,),
    )


def test_one_that_has_called_none_yet() -> None:
    assert parting({0: [waits(1)], 1: [NONE]}) == Parting(
        "rank 1 has called no collective of the default group, rank 0 1 (the last: all_reduce [8] float)", (1,)
    )


def test_of_whom_nothing_is_known_nothing_is_said() -> None:
    """Its record has wrapped, or tells other groups."""
    assert parting({0: [waits(1)], 1: [], 2: [call(7, group="tp")]}) is None


def test_whoever_waits_elsewhere_is_not_to_blame() -> None:
    """Rank 0 has left the others, who wait for it in another group; of two that wait apart it is nobody."""
    others = [call(4), waits(9, group="b")]
    found = parting({0: [call(4), waits(5)], 1: others, 2: others, 3: others})
    assert found is not None and found.ranks == () and found.message.startswith("ranks 1, 2, 3 have called 4")


def test_a_rank_that_has_only_come_less_far_with_what_all_wait_for_is_not_to_blame() -> None:
    """Calls that nobody waits for at once: rank 0 has given two more of them."""
    found = parting({0: [waits(4), waits(5), waits(6)], 1: [call(3), waits(4)]})
    assert found is not None and found.ranks == ()


def test_a_group_of_others_is_not_missed_by_who_is_not_in_it() -> None:
    """Only the group of all ranks is known to be everybody's."""
    assert parting({0: [waits(1, group="tp")], 1: []}) is None


def test_one_that_makes_another_call() -> None:
    ranks = {rank: [call(1), waits(2)] for rank in range(4)}
    ranks[2] = [call(1), waits(2, "broadcast", "[4] float")]
    assert parting(ranks) == Parting(
        "collective 2 of the default group is all_reduce [8] float on ranks 0, 1, 3, broadcast [4] float on rank 2",
        (2,),
    )


def test_the_first_that_differs_counts_and_of_two_halves_nobody_is_to_blame() -> None:
    found = parting({0: [call(1), call(2), waits(3, "barrier", "")], 1: [call(1), waits(2, sizes="[9] float")]})
    assert found == Parting(
        "collective 2 of the default group is all_reduce [8] float on rank 0, all_reduce [9] float on rank 1", ()
    )


def test_of_many_kinds_a_few_are_named() -> None:
    found = parting({rank: [waits(1, sizes=f"[{rank}] float")] for rank in range(6)})
    assert found is not None and found.message.endswith("[2] float on rank 2, and others"), found


def test_who_waits_in_another_group_is_not_the_first_cause() -> None:
    """Ranks 0 and 1 are one group, 1 and 2 another: 0 waits for 1, which waits for 2."""
    found = parting(
        {
            0: [waits(5, group="tp")],
            1: [call(4, group="tp"), waits(3, group="dp")],
            2: [call(2, group="dp")],
        }
    )
    assert found is not None and found.ranks == (2,) and "of group dp" in found.message, found


def test_where_all_stand_in_the_same_line_the_record_names_one() -> None:
    parted = Parting("rank 3 has called 20 collectives of the default group, the others 21", (3,))
    found = sentence.verdict(dict.fromkeys(range(8), REDUCES), {}, "14:02 UTC", parted)
    assert found == sentence.Verdict(
        "all 8 ranks wait in all_reduce (train.py:41) since 14:02 UTC: rank 3 has called 20 collectives of the default "
        "group, the others 21. Look at rank 3.",
        (3,),
    )


def test_a_rank_that_waits_in_none_is_to_blame_whatever_the_record_says() -> None:
    parted = Parting("ranks 0, 1 have called none", (0, 1))
    stacks = {**dict.fromkeys(range(8), REDUCES), 3: LOADS}
    assert sentence.verdict(stacks, {}, "14:02 UTC", parted) == sentence.verdict(stacks, {}, "14:02 UTC")
