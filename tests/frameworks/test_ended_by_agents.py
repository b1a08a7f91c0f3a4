"""Where a framework's other ranks would wait for one that is gone, for minutes or for ever, the agents end them all and the
next attempt resumes: real libraries, in the examples.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

LIMIT_S = 500
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]
STRIKE = """
import os, runpy, signal, sys
from trainjob.session import calls

_, rank, name, script, *arguments = sys.argv
plain, count = calls.report, 0

def report(*given, **named):
    global count
    plain(*given, **named)
    count += 1
    context = calls.get_context()
    if (context.rank, context.attempt, count) == (int(rank), 1, 2):
        print("struck", flush=True)
        os.kill(os.getpid(), getattr(signal, name))

calls.report = report
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("library", "rank", "name", "arguments", "last"),
    [
        pytest.param(
            "lightning", 1, "SIGTERM", ("--epochs", "2", "--points", "480"), 24, id="lightning ends one rank by itself"
        ),
        pytest.param("xgboost", 0, "SIGKILL", ("--rounds", "15", "--rows", "400"), 15, id="xgboost's tracker is gone"),
        pytest.param("lightgbm", 0, "SIGKILL", ("--rounds", "15", "--rows", "400"), 15, id="lightgbm does not notice"),
    ],
)
def test_all_ranks_end_and_the_next_attempt_resumes(
    tmp_path: Path, library: str, rank: int, name: str, arguments: tuple[str, ...], last: int
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    (tmp_path / "strike.py").write_text(STRIKE)
    job = ["run", "strike.py", "--workers", "2", "--name", "job", "--storage", ".", "--max-failures", "1"]
    given = [str(rank), name, str(ROOT / "examples" / library / "train.py"), *arguments]
    shown = said(["-m", "trainjob.cli.main", *job, "--prefork", "Never", "--", *given], tmp_path, limit_s=LIMIT_S)
    rows = Result.from_path(str(tmp_path / "default" / "job")).rows
    assert "struck" in shown and "2 attempts" in shown, shown
    assert [row["attempt"] for row in rows][:2] == [1, 1] and rows[-1]["attempt"] == 2, shown
    assert rows[-1]["step"] == last
