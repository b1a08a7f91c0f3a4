"""A test run with an end leaves out what takes long, counted, and begins elsewhere with each commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import in_time
from support.patience import HANG_S

ROOT = Path(__file__).parents[2]
FILES = [f"test_{letter}" for letter in "abcdefghij"]
ITEMS = [(file, number) for file in FILES for number in range(3)]


def ordered(**environ: str) -> list[tuple[str, int]]:
    items = list(ITEMS)
    in_time.order(items, lambda item: item[0], environ)
    return items


def test_without_an_end_the_order_stays() -> None:
    assert ordered(**{in_time.TURN: "3"}) == ITEMS
    assert not in_time.is_over(1e12, {})


def test_with_an_end_each_commit_begins_with_another_file_and_leaves_none_out() -> None:
    orders = [ordered(**{in_time.UNTIL: "1", in_time.TURN: f"{commit:x}"}) for commit in range(64)]
    assert {order[0][0] for order in orders} == set(FILES)
    for order in orders:
        first = FILES.index(order[0][0])
        assert order == [(file, number) for file in FILES[first:] + FILES[:first] for number in range(3)]


@pytest.mark.parametrize(("now", "over"), [(99.9, False), (100.0, True), (101.0, True)])
def test_nothing_long_begins_after_the_end(now: float, over: bool) -> None:
    assert in_time.is_over(now, {in_time.UNTIL: "100"}) is over


@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_long_ones_are_skipped_and_counted_and_short_ones_run(processes: list[str]) -> None:
    tests = ["tests/session/test_warm.py", "tests/project/test_skips.py", "-k", "new_interpreter_sees or skips"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *processes, *tests]
    environ = {**os.environ, in_time.UNTIL: "1", in_time.TURN: "x"}
    environ.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(rf"^ +([1-9]\d*)  {re.escape(in_time.REASON)}$", done.stdout, re.M)
    assert counted is not None and f"2 passed, {counted[1]} skipped" in done.stdout, done.stdout


@pytest.mark.parametrize(("hundredths", "code"), [(60, 0), (40, 1)])
def test_a_step_of_ci_for_which_no_time_is_left_is_red(hundredths: int, code: int) -> None:
    """All of its long tests would be skipped, and the rest would be green."""
    function = re.search(r"^by\(\) \{.*?^\}$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE | re.DOTALL)
    assert function is not None
    # Half of the time has passed, of so much that none passes meanwhile.
    script = f"commit=c limit=1000000 begun=$(($(date +%s) - 500000))\n{function[0]}\nby {hundredths} env || exit 3"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == code
    if code:
        assert done.stdout == "ci: RED: no time is left for: env\n"
    else:
        assert f"{in_time.TURN}=c" in done.stdout and f"{in_time.UNTIL}=" in done.stdout
