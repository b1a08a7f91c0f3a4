"""Errors are the same whatever process raised them; whatever else differs makes them two."""

from __future__ import annotations

import pytest

from trainjob_api import contract
from trainjob_api.same_error import by_any_process, same, same_sentence

HEAD = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    x()\n'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: DataLoader worker (pid(s) 74) exited", "RuntimeError: DataLoader worker (pid(s) 2807) exited"),
        ("RuntimeError: worker (pid(s) 1, 2) exited", "RuntimeError: worker (pid(s) 31, 32) exited"),
        ("RuntimeError: worker (pid 7) died", "RuntimeError: worker (pid 70007) died"),
        ("OSError: process 12 is gone", "OSError: process 13 is gone"),
        ("Can't pickle <function main.<locals>.f at 0x7f12ab>", "Can't pickle <function main.<locals>.f at 0x7e00ff9>"),
        ("No such file: '/tmp/tmpk3_x9a2b/a.pt'", "No such file: '/tmp/tmpzzzz0000/a.pt'"),
        ("No such file: '/tmp/mine-k3_x9a2b/a.pt'", "No such file: '/tmp/mine-zzzz0000/a.pt'"),
        ("trainjob-dict-k3_x9a2b is gone", "trainjob-dict-zzzz0000 is gone"),
        ("unable to open shared memory /torch_12_3_0", "unable to open shared memory /torch_4711_9_2"),
        ("ValueError: 127.0.0.1:40001 answers no", "ValueError: 127.0.0.1:50002 answers no"),
        ("ValueError: port 40001 is taken", "ValueError: port 50002 is taken"),
        (
            "run 12345678-1234-1234-1234-123456789abc is unknown",
            "run 87654321-abcd-1234-1234-123456789abc is unknown",
        ),
    ],
)
def test_what_differs_by_process_is_left_out(one: str, other: str) -> None:
    assert same(HEAD + one, HEAD + other)
    assert by_any_process(by_any_process(one)) == by_any_process(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 5", "KeyError: 6"),
        ("ValueError: line 12 of data.csv", "ValueError: line 13 of data.csv"),
        ("FileNotFoundError: '/data/shard001/x'", "FileNotFoundError: '/data/shard002/x'"),
        ("FileNotFoundError: '/data/part-00000001'", "FileNotFoundError: '/data/part-00000002'"),
        ("AssertionError: train.py:1234", "AssertionError: train.py:1300"),
        ("RuntimeError: size mismatch, 10 and 20", "RuntimeError: size mismatch, 10 and 30"),
        ("ValueError: loss is 1.25e8", "ValueError: loss is 1.26e8"),
    ],
)
def test_what_else_differs_makes_two(one: str, other: str) -> None:
    assert not same(HEAD + one, HEAD + other)


def test_the_same_exception_at_another_line_is_another_error() -> None:
    assert not same(HEAD + "KeyError: 5", HEAD.replace("line 3", "line 4") + "KeyError: 5")


@pytest.mark.parametrize("digits", [2, 5, 9])
def test_tracebacks_that_a_limit_has_cut_at_other_characters_are_the_same(digits: int) -> None:
    def cut(pid: str) -> str:
        frames = "".join(f'  File "train.py", line {at}, in step_{at}\n    go(pid {pid})\n' for at in range(400))
        return f"Traceback (most recent call last):\n{frames}ValueError: no"[-contract.TRACEBACK_LIMIT :]

    assert same(cut("7"), cut("7" * digits))
    assert not same(cut("7"), cut("7" * digits) + "t")
    assert not same(HEAD + "KeyError: 5", "KeyError: 5")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("rank 1 on mine-1 ended with exit code 3", "rank 1 on mine-2 ended with exit code 3", True),
        ("rank 1 on mine-1 ended with exit code 3", "rank 0 on mine-0 ended with exit code 3", False),
        ("rank 1 on mine-1 ended with exit code 3", "rank 1 on mine-1 ended with exit code 4", False),
        (
            f"rank 1 on mine-9 raised E: {'x' * 300}"[: contract.ENDED_LIMIT],
            f"rank 1 on mine-10 raised E: {'x' * 300}",
            True,
        ),
        (
            f"rank 1 on mine-1 raised E: {'x' * 300}"[: contract.ENDED_LIMIT],
            f"rank 1 on mine-1 raised F: {'x' * 300}",
            False,
        ),
        ("rank 1 on mine-1 raised E: bad", f"rank 1 on mine-1 raised E: bad {'x' * 300}", False),
    ],
    ids=["another worker", "another rank", "another code", "cut in the history", "cut, another error", "not cut"],
)
def test_a_cause_is_the_same_on_the_worker_that_took_the_place_and_where_a_history_cut_it(
    one: str, other: str, is_same: bool
) -> None:
    assert same_sentence(one, other) is is_same
