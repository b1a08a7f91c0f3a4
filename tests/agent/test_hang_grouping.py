"""Ranks are put together by where they stand, and the odd ones named."""

from __future__ import annotations

import pytest

from trainjob.agent.hangs import grouping

LIB = "/usr/lib/python3.12"


def _stack(*frames: tuple[str, int | str, str], threads: bool = True) -> str:
    """As faulthandler writes it: the main thread last."""
    lines = []
    if threads:
        lines += [
            "Thread 0x00007f3c1f7fe6c0 (most recent call first):",
            f'  File "{LIB}/threading.py", line 331 in wait',
        ]
        lines += [f'  File "{LIB}/threading.py", line 1032 in _bootstrap', ""]
    lines.append("Current thread 0x00007f3c2b5fa740 [python3] (most recent call first):")
    lines += [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join(lines)


TORCH = f"{LIB}/site-packages/torch/distributed/distributed_c10d.py"
RUN = ("<frozen runpy>", 88, "_run_code")


def _waits(line: int = 2810) -> str:
    return _stack((TORCH, line, "all_reduce"), ("/work/train.py", 90, "main"), ("/work/train.py", 99, "<module>"), RUN)


def _loads() -> str:
    return _stack(("/work/train.py", 41, "load_batch"), ("/work/train.py", 88, "main"), RUN)


def test_the_one_that_stands_elsewhere_is_named() -> None:
    """The line of a library does not count: seven wait in the same call, at two lines of it."""
    groups = grouping.group({rank: _loads() if rank == 3 else _waits(2810 + rank % 2) for rank in range(8)})
    assert [each.ranks for each in groups] == [(0, 1, 2, 4, 5, 6, 7), (3,)]
    assert groups[0].where == "wait in all_reduce (train.py:90)"
    assert groups[1].where == "in load_batch (train.py:41)"
    assert grouping.odd(groups) == (3,)


def test_what_is_told_goes_down_to_the_users_line_and_on_in_the_users_code() -> None:
    told = grouping.told(grouping.main_thread(_waits()))
    assert [frame.function for frame in told] == ["all_reduce", "main", "<module>"]
    told = grouping.told(
        grouping.main_thread(_stack((f"{LIB}/threading.py", 3, "wait"), (f"{LIB}/queue.py", 9, "get")))
    )
    assert [frame.function for frame in told] == ["wait", "get"]


def test_many_frames_of_libraries_are_counted_and_the_users_stay() -> None:
    library = [(f"{LIB}/site-packages/torch/nn/modules/module.py", n, f"call_{n}") for n in range(9)]
    users = [("/work/model.py", 12, "forward"), ("/work/train.py", 90, "main")]
    shown = grouping.lines({0: _stack(*library, *users, RUN)})
    assert [line.split()[-1] for line in shown[1:]] == ["call_0", "call_1", "call_2", "libraries", "forward", "main"]
    assert shown[4] == "    ... 6 frames of libraries"
    short = grouping.lines({0: _stack(*library[:4], *users, RUN)})
    assert [line.split()[-1] for line in short[1:]] == ["call_0", "call_1", "call_2", "call_3", "forward", "main"]


def test_a_rank_in_a_call_of_ours_stands_in_that_call_and_how_it_waits_is_folded() -> None:
    ours = "/venv/lib/python3.12/site-packages/trainjob/session"
    wait = [(f"{LIB}/socket.py", 5, "recv"), (f"{ours}/connection.py", 55, "recv"), (f"{ours}/line.py", 80, "_ask")]
    report = _stack(*wait, (f"{ours}/calls.py", 90, "report"), ("/work/fit.py", 89, "main"), RUN)
    assert grouping.lines({0: report}) == [
        "rank 0: waits in report (fit.py:89)",
        "    ... 4 frames of libraries",
        "    fit.py:89 main",
    ]
    assert grouping.lines({0: report, 1: report})[0] == "2 of 2 ranks (ranks 0, 1): wait in report (fit.py:89)"


def test_a_rank_without_a_stack_stands_by_what_was_said_of_it() -> None:
    stopped = "gives no stack within 1 s: the process is stopped (SIGSTOP or a debugger)"
    groups = grouping.group({0: _waits(), 1: stopped, 2: _waits()})
    assert groups[1] == grouping.Group((1,), stopped, stopped) and grouping.odd(groups) == (1,)


@pytest.mark.parametrize(
    "stacks",
    [
        {0: _waits(), 1: _waits()},
        {0: _waits(), 1: _loads()},
        {0: _waits(), 1: _waits(), 2: _loads(), 3: _loads()},
        {0: _waits()},
        {},
    ],
)
def test_without_a_majority_nobody_is_odd(stacks: dict[int, str]) -> None:
    assert grouping.odd(grouping.group(stacks)) == ()


def test_two_places_of_the_users_are_two_even_in_the_same_call() -> None:
    other = _stack((TORCH, 2810, "all_reduce"), ("/work/train.py", 120, "validate"), RUN)
    assert len(grouping.group({0: _waits(), 1: other})) == 2


def test_whatever_a_rank_wrote_is_read() -> None:
    for text in ("", "\n\n", "Thread 0xzz", '  File "a', "\x00", _stack(("a", "???", "f"))):
        assert [each.ranks for each in grouping.group({0: text})] == [(0,)]
    assert grouping.main_thread(_stack(("/a.py", "???", "f")))[0].place == "a.py:???"
