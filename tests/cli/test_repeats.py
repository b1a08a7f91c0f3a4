"""A traceback that several ranks raise, or that a restart raises again, is shown once; in doubt all of it is."""

from __future__ import annotations

import io
from typing import Any

import pytest

from support.jobs import attempt, job
from trainjob.screen.display import Once, PlainDisplay, choose
from trainjob.screen.repeats import Repeats
from trainjob_api import contract

ERROR = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    x()", "KeyError: 'b'"]
LOADER = [*ERROR[:-1], "KeyError: Caught KeyError in DataLoader worker process 0.", f"Original {ERROR[0]}", *ERROR[1:]]


def of(rank: int, lines: list[str]) -> list[str]:
    """As a rank with torch prints them."""
    return [f"r{rank:02} | [rank{rank}]: {line}" for line in lines]


def shown(lines: list[str]) -> list[str]:
    repeats = Repeats()
    return [line for each in lines for line in repeats.take(each)] + repeats.release()


def test_the_second_rank_says_whose_traceback_it_has() -> None:
    said = "r01 | (the same KeyError as r00's above)"
    assert shown([*of(0, ERROR), *of(1, ERROR), "r01 | bye"]) == [*of(0, ERROR), said, "r01 | bye"]
    assert shown([*of(0, LOADER), "r00 | ", *of(1, LOADER), "r01 | "]) == [*of(0, LOADER), "r00 | ", said, "r01 | "]


def test_a_prompt_before_a_traceback_makes_no_other_one() -> None:
    """input() writes its question without a line's end."""
    asked = [[f"r{rank:02} | how many? {ERROR[0]}", *of(rank, ERROR[1:])] for rank in (0, 1)]
    said = "r01 | (the same KeyError as r00's above)"
    assert shown([*asked[0], *asked[1], "r01 | bye"]) == [*asked[0], said, "r01 | bye"]
    repeats = Repeats()
    for line in asked[0]:
        repeats.take(line)
    assert repeats.has_shown("\n".join(ERROR), "r00") == 1


def test_one_rank_says_it_for_all_until_something_else_is_shown() -> None:
    repeats = Repeats()

    def take(lines: list[str]) -> list[str]:
        return [line for each in lines for line in repeats.take(each)]

    said = "(the same KeyError as r00's above)"
    assert take([*of(0, ERROR), *of(1, ERROR), *of(2, ERROR)]) == of(0, ERROR)
    assert repeats.settle() == [f"r01 | {said}"], "the job says that the attempt failed"
    assert take([*of(1, ERROR), *of(0, ERROR)]) == []
    assert repeats.settle() == [f"r01 | {said}"], "so it does at the next start"
    assert take([*of(2, ERROR), "r02 | bye", *of(0, ERROR), "r00 | bye"]) == [
        *(f"r02 | {said}", "r02 | bye"),
        *(f"r00 | {said}", "r00 | bye"),
    ]


USAGE = [
    "usage: train.py [-h] [--epochs EPOCHS]",
    "                [--lr LR]",
    "train.py: error: unrecognized arguments: -x",
]


def test_a_script_that_refuses_its_arguments_says_so_once() -> None:
    def plain(rank: int) -> list[str]:
        return [f"r{rank:02} | {line}" for line in USAGE]

    said = "r01 | (the same usage error as r00's above)"
    assert shown([*plain(0), *plain(1), *plain(2)]) == [*plain(0), said]
    helped = [*plain(0)[:2], "r00 | ", "r00 | options:"]
    assert shown([*helped, *helped]) == [*helped, *helped], "--help is no refusal"


def test_what_python_adds_when_it_prints_an_error_makes_no_other_one() -> None:
    repeats = Repeats()
    told = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nNameError: name 'xs' is not defined"
    for line in f"{told}. Did you mean: 'x'?".splitlines():
        repeats.take(f"r00 | {line}")
    assert repeats.has_shown(told)
    assert not repeats.has_shown(told.replace("'xs'", "'y'"))


def test_lines_of_two_ranks_may_come_in_turn() -> None:
    both = [line for pair in zip(of(0, ERROR), of(1, ERROR), strict=True) for line in pair]
    assert [line for line in shown(both) if line.startswith("r00")] == of(0, ERROR)
    assert len(shown(both)) == len(ERROR) + 1


def test_an_attempt_that_fails_in_the_same_way_says_so_in_a_line() -> None:
    assert shown([*of(0, ERROR), "r00 | again", *of(0, ERROR)]) == [
        *of(0, ERROR),
        "r00 | again",
        "r00 | (the same KeyError as r00's above)",
    ]


def test_a_traceback_that_follows_one_at_once_is_another_one() -> None:
    assert shown([*of(0, ERROR), *of(0, ERROR)]) == [*of(0, ERROR), "r00 | (the same KeyError as r00's above)"]


CRASH = [
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x00007f7d8ebcfb80 (most recent call first):",
    '  File "/lib/ctypes/__init__.py", line 519 in string_at',
    '  File "train.py", line 4 in crash',
    "",
    "Extension modules: numpy, torch._C (total: 2)",
]


def test_a_crash_in_native_code_shows_its_stack_once() -> None:
    again = [line.replace("7f7d8ebcfb80", "7f9c79859b80") for line in CRASH]
    said = "(the same Fatal Python error: Segmentation fault as r00's above)"
    assert shown([*of(0, CRASH), *of(1, again), *of(0, again), "r00 | bye"]) == [
        *of(0, CRASH),
        f"r00 | {said}",
        "r00 | bye",
        f"r01 | {said}",
    ]
    elsewhere = [line.replace("line 4", "line 5") for line in again]
    assert shown([*of(0, CRASH), *of(1, elsewhere)]) == [*of(0, CRASH), *of(1, elsewhere)]


def test_a_crash_that_was_shown_is_known_by_the_summary() -> None:
    display = Once(PlainDisplay(io.StringIO(), io.StringIO()))
    told = f'{ERROR[0]}\n  File "train.py", line 4, in crash\n{CRASH[0]}'
    assert not display.has_shown(told)
    for line in of(1, CRASH):
        display.line(line)
    assert display.has_shown(told)


def test_pids_in_an_error_make_no_other_one() -> None:
    one, other = ([*ERROR[:-1], f"RuntimeError: DataLoader worker (pid(s) {pid}) exited"] for pid in (74, 26960))
    assert shown([*of(0, one), *of(1, other)]) == [*of(0, one), "r01 | (the same RuntimeError as r00's above)"]


def test_whether_a_traceback_was_shown_is_remembered() -> None:
    display = Once(PlainDisplay(io.StringIO(), io.StringIO()))
    assert not display.has_shown("\n".join(ERROR))
    for line in of(1, ERROR):
        display.line(line)
    assert display.has_shown("\n".join(ERROR)) and not display.has_shown("\n".join([*ERROR[:-1], "KeyError: 'c'"]))


def test_it_is_remembered_of_which_attempt_the_lines_were() -> None:
    display = Once(PlainDisplay(io.StringIO(), io.StringIO()))
    for number in (1, 2):
        display.status(job({"attempt": attempt(number)}))
        for line in of(1, ERROR):
            display.line(line)
        display.note("attempt ended")
        assert display.has_shown("\n".join(ERROR), 1) == 1, "the second time it was said to be the same"


def test_what_differs_in_a_line_is_shown_whole() -> None:
    other = [*ERROR[:-1], "KeyError: 'c'"]
    assert shown([*of(0, ERROR), *of(1, other)]) == [*of(0, ERROR), *of(1, other)]
    chained = [*ERROR, "", "During handling of the above exception, another exception occurred:", "", *other]
    assert shown([*of(0, chained), *of(1, other)]) == [*of(0, chained), *of(1, other)]


def test_what_was_cut_off_is_shown_at_the_end() -> None:
    assert shown([*of(0, ERROR), *of(1, ERROR[:2])]) == [*of(0, ERROR), *of(1, ERROR[:2])]
    out = io.StringIO()
    display = Once(PlainDisplay(out, io.StringIO()))
    for line in [*of(0, ERROR), *of(1, ERROR[:2])]:
        display.line(line)
    display.close()
    assert out.getvalue().splitlines() == [*of(0, ERROR), *of(1, ERROR[:2])]


def test_a_user_who_asks_for_everything_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = [{"verbose": True}, {"environment": {contract.ENV_VERBOSE: "1"}}]
    for given in asked:
        display = choose(plain=True, **given)
        for line in [*of(0, ERROR), *of(1, ERROR)]:
            display.line(line)
        assert capsys.readouterr().out.splitlines() == [*of(0, ERROR), *of(1, ERROR)]


def test_a_message_that_differs_in_a_later_line_is_shown_whole_also_where_lines_come_in_turn() -> None:
    one, other = [*ERROR, "  in row 1"], [*ERROR, "  in row 2"]
    both = [line for pair in zip(of(0, one), of(1, other), strict=True) for line in pair]
    for lines in ([*of(0, one), *of(1, other)], both):
        assert sorted(shown(lines)) == sorted([*of(0, one), *of(1, other)])


def test_chained_tracebacks_that_come_in_turn_are_told_once_as_a_whole() -> None:
    chained = [*ERROR, "", "During handling of the above exception, another exception occurred:", "", *ERROR]
    both = [line for pair in zip(of(0, chained), of(1, chained), strict=True) for line in pair]
    said = "r01 | (the same KeyError as r00's above)"
    assert shown(both) == [*of(0, chained), said]


def test_another_ranks_traceback_is_not_taken_for_the_named_ones() -> None:
    """The same exception at another place: the end shows that of the rank that the cause names."""
    repeats = Repeats()
    for line in of(0, ERROR):
        repeats.take(line)
    told = "\n".join(ERROR)
    assert repeats.has_shown(told, "r00") and repeats.has_shown(told) and not repeats.has_shown(told, "r01")
    for line in of(1, ERROR):
        repeats.take(line)
    repeats.release()
    assert repeats.has_shown(told, "r01"), "it was said to be the same"
