"""`make bench` prints lines that machines can read and keeps its samples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True
    ).stdout


@pytest.mark.parametrize(
    ("figure", "line"),
    [
        ("Figure('restart', 's', [3.0, 1.0, 2.0])", "restart 2 s"),
        ("Figure('restart', 's', [1.0], [4.0], 'torchrun')", "restart 1 4 0.25"),
        ("Figure('report_p99', 'ms', list(range(1, 101)), quantile=0.99)", "report_p99 100 ms"),
    ],
)
def test_a_figure_is_one_line(figure: str, line: str) -> None:
    assert run(f"from benchmarks.figures import Figure; print({figure}.line())").strip() == line


def test_a_recovery_is_over_with_the_last_ranks_first_step() -> None:
    code = (
        "from benchmarks.jobs import Step\nfrom benchmarks.restart import last_first_step\n"
        "steps = [Step(0, 1, 1, 9, 1.0), Step(0, 3, 2, 1, 5.0), Step(0, 3, 2, 2, 8.0), Step(1, 4, 2, 1, 7.0)]\n"
        "print(last_first_step(steps[:3], 1, 2), last_first_step(steps, 1, 2).time)"
    )
    assert run(code).split() == ["None", "7.0"]


def test_a_resize_is_over_with_the_last_ranks_first_step_and_its_price_is_what_is_made_again() -> None:
    code = (
        "from benchmarks.jobs import Step\nfrom benchmarks.resize import cost, first_of\n"
        "old = [Step(0, 1, 1, 7, 1.0), Step(1, 2, 1, 7, 1.5), Step(0, 1, 1, 8, 2.0)]\n"
        "new = [Step(0, 3, 2, 6, 4.0), Step(0, 3, 2, 7, 5.0), Step(1, 4, 2, 6, 4.5), Step(2, 5, 2, 6, 6.0)]\n"
        "print(first_of([*old, *new[:3]], {1, 2}, 3), *cost([*old, *new], {1, 2}, 3))"
    )
    assert run(code).split() == ["None", "4.0", "3"]


def test_what_a_notice_costs_is_what_the_next_attempt_makes_again(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("0 1 1 8 1.0\n1 2 1 8 1.0\n0 1 1 9 2.0\n0 3 2 8 7.5\n0 3 2 9 8.0\n")
    code = (
        "import sys; sys.path.insert(0, 'tests')\nfrom pathlib import Path\nfrom benchmarks.notice import Run\n"
        f"run = Run(Path({str(notes)!r}), 30)\nrun.noticed_at, run.gone_at = 2.5, 5.0\nprint(*run.cost())"
    )
    assert run(code).split() == ["2", "2.5", "5.0"]


def test_of_a_step_that_was_made_again_the_last_one_counts() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\nfrom types import SimpleNamespace as Of\n"
        "from benchmarks.spot import Worth, trace\n"
        "groups = {1: Of(attempt=1, members='abcd')}\n"
        "worth = Worth(sim=Of(world=Of(groups=groups)))\nfor step in (1, 2, 3): worth.append(step)\n"
        "groups[2] = Of(attempt=2, members='ab')\nworth.append(2)\n"
        "rooms = trace(1, 600.0)\n"
        "print(sum(worth.sizes.values()), rooms == trace(1, 600.0), all(8 <= room <= 64 for _, room in rooms))"
    )
    assert run(code).split() == ["6", "True", "True"]


def test_what_was_done_again_and_what_stood_still_makes_a_step_slower() -> None:
    """Ten seconds: six steps of one second, five of them kept, and a stop of four seconds."""
    code = (
        "from benchmarks.jobs import Step\nfrom benchmarks.goodput import pace\n"
        "before = [Step(0, 1, 1, step, float(step)) for step in range(4)]\n"
        "after = [Step(0, 2, 2, step, 5.0 + step) for step in range(3, 6)]\n"
        "others = [Step(1, 9, 1, 7, 0.5)]\n"
        "print(pace([*before, *others, *after]), pace([*before, *others, *after], leave_out=1))"
    )
    assert run(code).split() == ["2.0", "2.25"]


@pytest.mark.parametrize("words", [["--kills", "19"], ["--kills", "10", "--every", "6"], ["--every", "0"]])
def test_fewer_than_three_rows_of_kills_are_refused(words: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.kills", *words]
    env = {**os.environ, "PYTHONPATH": "tests"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, "fewer than 3 rows" in done.stderr) == (2, True), done.stderr


def test_a_measurement_prints_its_figure_and_keeps_every_sample(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--only", "help", "--rounds", "1", "--results", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": "tests"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert re.fullmatch(r"tj_help \d+\.\d+ s\n", done.stdout)
    (kept,) = tmp_path.glob("*.json")
    content = json.loads(kept.read_text())
    assert len(content["figures"]["help"][0]["samples"]) == 5
    assert content["machine"]["python"]


def test_what_stands_between_a_job_and_its_agents_is_counted_too() -> None:
    code = (
        "from benchmarks.kills import AGENT, Process, found_below\n"
        "def process(pid, parent, word): return Process(pid, parent, False, pid, [word])\n"
        "seen = [process(2, 1, b'kept'), process(3, 2, b'between'), process(4, 3, AGENT), process(5, 4, b'rank'),\n"
        "    process(6, 1, AGENT), process(7, 9, AGENT)]\n"
        "agents, above = found_below(1, seen)\n"
        "print([each.pid for each in agents], [each.pid for each in above])\n"
        "try: found_below(5, seen)\n"
        "except RuntimeError as error: print(error)"
    )
    assert run(code).splitlines() == [
        "[6, 4] [2, 3]",
        "process 5 has no agent: `tj run` has ended, or starts its agents in another way",
    ]


def test_what_kills_leave_behind_is_told_from_what_comes_and_goes() -> None:
    code = (
        "from benchmarks.kills import Count, grown\n"
        "def row(fds, threads): return Count(0, fds, threads, 1, 1, 1, 1, 1, 1, 0, 0)\n"
        "print(grown([row(51, 16), row(53, 18), row(51, 17), row(51, 17), row(54, 18), row(51, 17)]))\n"
        "print(grown([row(51, 16), row(52, 18), row(52, 19), row(52, 20), row(52, 21), row(53, 22)]))"
    )
    assert run(code).splitlines() == ["[]", "['agent_fds: 51 -> 52', 'agent_threads: 18 -> 21']"]


def test_a_peer_that_is_not_there_is_left_out_with_the_reason() -> None:
    code = (
        "import os, sys\nfrom benchmarks.jobs import DLROVER, RAY, peers\n"
        "sys.stderr = sys.stdout\n"
        "os.environ.pop(RAY.variable, None)\nos.environ[DLROVER.variable] = '/nowhere/python'\n"
        "print(peers())\n"
        "os.environ[RAY.variable] = sys.executable\n"
        "print(RAY._replace(module='no_such_module').python())\n"
        "print(RAY._replace(module='json').python() == sys.executable)"
    )
    no_ray, no_dlrover, none, no_module, nothing, there = run(code).splitlines()
    assert no_ray == "skipped: Ray Train (TRAINJOB_BENCH_RAY_PYTHON names no Python that has ray and torch)"
    assert no_dlrover.startswith("skipped: DLRover (/nowhere/python cannot import dlrover.trainer.torch.elastic_run: ")
    assert no_module.startswith(f"skipped: Ray Train ({sys.executable} cannot import no_such_module: ")
    assert (none, nothing, there) == ("[]", "None", "True")
