"""What is said of ranks that hang: who waits, and at whom to look."""

from __future__ import annotations

from trainjob.agent.hangs import sentence
from trainjob.agent.hangs.sentence import Verdict
from trainjob_api import contract

LIB = "/usr/lib/python3.12"
C10D = f"{LIB}/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = f"{LIB}/site-packages/torch/distributed/c10d_logger.py"
OURS = "/trainjob/lib/trainjob/session/calls.py"
NODES = {rank: f"gpu-{'abcdefgh'[rank % 8]}" for rank in range(512)}
SINCE = "14:02 UTC"


def _stack(*frames: tuple[str, int, str]) -> str:
    lines = ["Current thread 0x00007f3c2b5fa740 [python3] (most recent call first):"]
    return "\n".join([*lines, *(f'  File "{file}", line {line} in {function}' for file, line, function in frames)])


def reduces(line: int = 41) -> str:
    return _stack((C10D, 2810, "all_reduce"), (LOGGER, 81, "wrapper"), ("/work/train.py", line, "main"))


def reports(line: int = 60) -> str:
    return _stack(
        (f"{LIB}/selectors.py", 5, "select"), (OURS, 9, "_call"), (OURS, 80, "report"), ("/w/train.py", line, "main")
    )


def loads() -> str:
    return _stack(("/work/train.py", 88, "load_batch"), ("/work/train.py", 40, "main"))


def said(stacks: dict[int, str]) -> Verdict:
    return sentence.verdict(stacks, NODES, SINCE)


def test_the_one_that_does_not_wait_is_to_be_looked_at() -> None:
    found = said({rank: loads() if rank == 3 else reduces() for rank in range(8)})
    assert found == Verdict(
        "7 of 8 ranks wait in all_reduce (train.py:41) since 14:02 UTC; rank 3 (gpu-d) is in train.py:88 load_batch. "
        "Look at rank 3.",
        (3,),
    )


def test_of_two_ranks_too() -> None:
    assert said({0: reports(), 1: loads()}) == Verdict(
        "rank 0 waits in report (train.py:60) since 14:02 UTC; rank 1 (gpu-b) is in train.py:88 load_batch. "
        "Look at rank 1.",
        (1,),
    )


def test_most_of_them_may_be_to_blame() -> None:
    found = said({0: reports(), 1: loads(), 2: loads(), 3: loads()})
    assert found.ranks == (1, 2, 3) and "ranks 1, 2, 3 are in train.py:88 load_batch. Look at ranks 1, 2, 3." in (
        found.message
    )


def test_ranks_that_wait_for_each_other_are_told_apart() -> None:
    found = said({0: reduces(), 1: reduces(), 2: reports()})
    assert found == Verdict(
        "ranks wait for each other since 14:02 UTC: ranks 0, 1 wait in all_reduce (train.py:41); rank 2 waits in "
        "report (train.py:60). Do all of them make the same calls? Look at rank 2.",
        (2,),
    )
    assert said({0: reduces(), 1: reports()}).ranks == ()


def test_rank_0_alone_in_report_is_asked_whether_it_alone_calls_it() -> None:
    why = " Do all of them make the same calls? report() is called by all ranks: does it stand under `if rank == 0:`, or has rank 0 fewer batches?"
    assert said({0: reports(), 1: reduces()}).message.endswith(why)
    assert "if rank == 0" not in said({0: reports(), 1: reports(), 2: reduces()}).message


def test_all_in_one_collective() -> None:
    found = said(dict.fromkeys(range(4), reduces()))
    assert found == Verdict(
        "all 4 ranks wait in all_reduce (train.py:41) since 14:02 UTC: a collective that does not end", ()
    )


def test_one_rank_alone_and_all_in_the_same_place() -> None:
    assert said({0: loads()}) == Verdict(
        "rank 0 (gpu-a) is in train.py:88 load_batch since 14:02 UTC, without a step", ()
    )
    assert said({0: loads(), 1: loads()}).message.startswith("2 of 2 ranks are in train.py:88 load_batch since")


def test_a_call_into_a_library_is_named_with_the_users_line() -> None:
    locked = _stack((f"{LIB}/threading.py", 331, "acquire"), ("/work/train.py", 7, "take"))
    assert "rank 0 (gpu-a) is in acquire (train.py:7) since" in said({0: locked}).message


def test_a_rank_that_gives_no_stack_is_the_one() -> None:
    stopped = "gives no stack within 1 s: the process is stopped (SIGSTOP or a debugger)"
    found = said({0: reduces(), 1: stopped, 2: reduces()})
    assert found.ranks == (1,) and f"; rank 1 (gpu-b) {stopped}. Look at rank 1." in found.message


def test_the_sentence_stays_short_at_512_ranks() -> None:
    places = [_stack((f"/work/a{n}.py", n, "f")) for n in range(200)]
    found = said({rank: places[rank] if rank < 200 else reduces() for rank in range(512)})
    assert len(found.message) < contract.MESSAGE_LIMIT / 2 and len(found.ranks) == 200
    assert "312 of 512 ranks wait" in found.message and "196 more stand in other places" in found.message


def test_a_rank_under_a_debugger_stands_still_because_it_is_to() -> None:
    pdb = _stack((f"{LIB}/cmd.py", 3, "cmdloop"), (f"{LIB}/pdb.py", 9, "interaction"), ("/work/train.py", 4, "main"))
    assert sentence.is_debugged({0: reduces(), 1: pdb})
    assert sentence.is_debugged({0: f"gives no stack: {sentence.TRACED} (TracerPid 12)"})
    assert not sentence.is_debugged({0: reduces(), 1: loads(), 2: "gives no stack: the process is stopped"})
