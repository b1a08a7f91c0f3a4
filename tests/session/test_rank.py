"""Real rank processes: the boot, its ends, and two ranks that meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from support.fake_agent import FakeAgent
from support.patience import HANG_S
from support.ranks import boot, environment, finish, run_ranks

pytestmark = pytest.mark.slow

SHOW = """
import json, sys
module = sys.modules["__main__"]
assert module.__dict__ is globals()
spec = __spec__ and __spec__.name
names = sorted(name for name in globals() if name not in ("json", "sys", "module", "spec", "__annotations__"))
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, __package__, spec, names]))
"""


def _write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["ein skript ü.py", "a", "--b"],
        ["./sub/../ein skript ü.py"],
        ["-m", "pkg.tool", "x"],
        ["-m", "pkg"],
        ["folder", "y"],
    ],
)
def test_a_rank_looks_like_python_itself(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("ein skript ü.py", "pkg/tool.py", "pkg/__main__.py", "folder/__main__.py"):
        _write(tmp_path, name, SHOW)
    _write(tmp_path, "pkg/__init__.py", "")
    as_rank = finish([boot(command, {}, tmp_path)])[0]
    by_python = subprocess.run(
        [sys.executable, *command], env=environment({}), cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S
    )
    assert as_rank.code == 0, as_rank.err
    assert as_rank.out == by_python.stdout


def test_spawned_children_find_the_script(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "train.py",
        """
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
    )
    assert finish([boot(["train.py"], {}, tmp_path)])[0].out == "[2, 4]\n"


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(3)", 3), ("sys.exit('words')", 1), ("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9), ("pass", 0)],
)
def test_the_exit_code_is_the_scripts(tmp_path: Path, ending: str, code: int) -> None:
    _write(tmp_path, "train.py", f"import os, sys\n{ending}\n")
    with FakeAgent(tmp_path / "job", 1) as agent:
        assert run_ranks(agent, ["train.py"], tmp_path)[0].code == code
    assert agent.rank_errors == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["missing.py"], "can't open file"),
        (["broken.py"], "SyntaxError"),
        (["-m", "no.such.module"], "No module named 'no.such.module'"),
        (["-m", "pkg"], "No module named 'pkg.__main__'"),
        ([], "no command"),
    ],
)
def test_what_cannot_start_is_said_as_such(tmp_path: Path, command: list[str], words: str) -> None:
    _write(tmp_path, "broken.py", "def f(:\n")
    _write(tmp_path, "pkg/__init__.py", "")
    with FakeAgent(tmp_path / "job", 1) as agent:
        ended = run_ranks(agent, command, tmp_path)[0]
        agent.wait_for("the error", lambda: agent.rank_errors)
    assert ended.code == 1
    assert words in ended.err and "session/rank.py" not in ended.err
    assert agent.rank_errors[0]["kind"] == "start"
    assert words in agent.rank_errors[0]["traceback"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train.py"], "SyntaxError"),
        (["-m", "bad.tool"], "ZeroDivisionError"),
        (["-m", "lacks.tool"], "ModuleNotFoundError"),
    ],
)
def test_errors_in_what_the_script_imports_are_exceptions(tmp_path: Path, command: list[str], words: str) -> None:
    _write(tmp_path, "train.py", "import broken\n")
    _write(tmp_path, "broken.py", "def f(:\n")
    _write(tmp_path, "bad/__init__.py", "1 / 0\n")
    _write(tmp_path, "lacks/__init__.py", "import not_installed\n")
    with FakeAgent(tmp_path / "job", 1) as agent:
        ended = run_ranks(agent, command, tmp_path)[0]
        agent.wait_for("the error", lambda: agent.rank_errors)
    assert ended.code == 1 and agent.rank_errors[0]["kind"] == "exception" and words in agent.rank_errors[0]["type"]


def test_an_exception_is_told_and_printed(tmp_path: Path) -> None:
    script = _write(
        tmp_path,
        "train.py",
        """
        import sys, threading, trainjob
        def train():
            trainjob.log({"loss": 1.0}, step=5)
            raise ValueError("bad batch")
        hook = sys.excepthook
        def own(*what):
            print("own hook", file=sys.stderr)
            hook(*what)
        sys.excepthook = own
        train()
        """,
    )
    with FakeAgent(tmp_path / "job", 1) as agent:
        ended = run_ranks(agent, ["train.py"], tmp_path)[0]
        agent.wait_for("the error", lambda: agent.rank_errors)
        assert [row["step"] for row in agent.rows] == [5]
    error = agent.rank_errors[0]
    assert ended.code == 1
    assert (error["kind"], error["type"], error["message"], error["communication"]) == (
        "exception",
        "ValueError",
        "bad batch",
        False,
    )
    assert error["traceback"].splitlines()[1] == f'  File "{script}", line 11, in <module>'
    assert ended.err.startswith("own hook\nTraceback (most recent call last):\n")
    assert ended.err.splitlines()[2] == f'  File "{script}", line 11, in <module>'


def test_what_ended_the_script_is_told_though_a_handler_of_its_own_raises_meanwhile(tmp_path: Path) -> None:
    """As torch's for SIGCHLD does, once for each process of a DataLoader that was killed."""
    _write(
        tmp_path,
        "train.py",
        """
        import os, signal
        def handler(number, frame):
            raise RuntimeError("another process was killed")
        class Bad(ValueError):
            def __str__(self):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                return "bad batch"
        signal.signal(signal.SIGCHLD, handler)
        raise Bad()
        """,
    )
    with FakeAgent(tmp_path / "job", 1) as agent:
        ended = run_ranks(agent, ["train.py"], tmp_path)[0]
        agent.wait_for("the error", lambda: agent.rank_errors)
    assert ended.code == 1 and ended.err.rstrip().endswith("Bad: bad batch")
    assert (agent.rank_errors[0]["type"], agent.rank_errors[0]["message"]) == ("Bad", "bad batch")


def test_a_rank_that_a_launcher_started_tells_its_exception_too(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "train.py",
        "import trainjob\nprint(trainjob.get_context().get_world_rank())\nraise ValueError('bad batch')\n",
    )
    with FakeAgent(tmp_path / "job", 1) as agent:
        done = subprocess.run(
            [sys.executable, "train.py"],
            env=environment(agent.environ(0)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        agent.wait_for("the error", lambda: agent.rank_errors)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("ValueError: bad batch")
    assert (agent.rank_errors[0]["kind"], agent.rank_errors[0]["message"]) == ("exception", "bad batch")
    assert "train.py" in agent.rank_errors[0]["traceback"]


def test_logs_are_flushed_at_the_end(tmp_path: Path) -> None:
    _write(tmp_path, "train.py", "import trainjob\nfor i in range(700): trainjob.log({'x': i}, step=i)\n")
    with FakeAgent(tmp_path / "job", 1) as agent:
        assert run_ranks(agent, ["train.py"], tmp_path)[0].code == 0
        agent.wait_for("the rank's end", lambda: agent.gone)
        assert [row["step"] for row in agent.rows] == list(range(700))


MEET = """
import sys, trainjob
from trainjob import collective
context = trainjob.get_context()
rank = context.get_world_rank()
collective.barrier(timeout_s=600)
got = collective.broadcast_from_rank_zero({"lr": 0.1} if rank == 0 else None)
trainjob.report({"rank": rank}, step=1, checkpoint=trainjob.Checkpoint.from_dict({"by": rank}) if rank == 1 else None)
print(rank, context.get_world_size(), got, trainjob.get_checkpoint().to_dict())
"""


def test_three_ranks_meet(tmp_path: Path) -> None:
    _write(tmp_path, "train.py", MEET)
    with FakeAgent(tmp_path / "job", 3) as agent:
        ended = run_ranks(agent, ["train.py"], tmp_path)
    assert [each.code for each in ended] == [0, 0, 0], ended
    assert [each.out for each in ended] == [f"{rank} 3 {{'lr': 0.1}} {{'by': 1}}\n" for rank in range(3)]
    assert {rank: report["metrics"] for rank, report in agent.reports[0].items()} == {
        rank: {"rank": rank} for rank in range(3)
    }


def test_a_rank_that_left_is_an_error_for_those_who_wait(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "train.py",
        "import trainjob\nif trainjob.get_context().get_world_rank() == 0: trainjob.report({'a': 1})\n",
    )
    with FakeAgent(tmp_path / "job", 2) as agent:
        ended = run_ranks(agent, ["train.py"], tmp_path)
    assert [each.code for each in ended] == [1, 0]
    assert agent.rank_errors[0]["communication"] is True and agent.rank_errors[0]["type"].endswith("RankGoneError")


def test_different_calls_are_an_error_for_both(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "train.py",
        "import trainjob\nif trainjob.get_context().get_world_rank() == 0: trainjob.report({})\nelse: "
        "trainjob.barrier()\n",
    )
    with FakeAgent(tmp_path / "job", 2) as agent:
        ended = run_ranks(agent, ["train.py"], tmp_path)
    assert [each.code for each in ended] == [1, 1]
    assert all("rank 0 called report, rank 1 called barrier" in each.err for each in ended)


def _until(what: str, ready: object) -> None:
    deadline = time.monotonic() + HANG_S
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_the_stacks_can_be_read_from_outside(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "train.py",
        "import time\ndef stuck_here():\n    print('ready', flush=True)\n    time.sleep(600)\nstuck_here()\n",
    )
    stacks = tmp_path / "stack-3"
    process = boot(["train.py"], {"TRAINJOB_STACK_FOLDER": str(tmp_path), "RANK": "3"}, tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGUSR2)
    _until("a stack in the file", lambda: "stuck_here" in stacks.read_text())
    process.kill()
    assert finish([process])[0].code == -signal.SIGKILL


def test_a_rank_dies_with_its_agent(tmp_path: Path) -> None:
    _write(tmp_path, "train.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    # A stand-in for the agent: starts the rank, and is killed.
    _write(
        tmp_path,
        "parent.py",
        """
        import os, subprocess, sys
        env = {**os.environ, "TRAINJOB_AGENT_PID": str(os.getpid())}
        subprocess.run([sys.executable, "-m", "trainjob.session.rank", "--", "train.py"], env=env)
        """,
    )
    parent = subprocess.Popen(
        [sys.executable, "parent.py"], env=environment({}), cwd=tmp_path, text=True, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    rank = int(parent.stdout.readline())
    parent.kill()
    parent.wait(HANG_S)
    # The pipe's end of file: nobody holds its write end any more, so the rank is gone.
    assert parent.stdout.read() == ""
    parent.stdout.close()
    _until(
        "the rank is gone",
        lambda: not os.path.exists(f"/proc/{rank}/cmdline") or not Path(f"/proc/{rank}/cmdline").read_bytes(),
    )


def test_a_rank_whose_agent_is_gone_already_does_not_start(tmp_path: Path) -> None:
    _write(tmp_path, "train.py", "print('started')\n")
    ended = finish([boot(["train.py"], {"TRAINJOB_AGENT_PID": "999999"}, tmp_path)])[0]
    assert (ended.code, ended.out) == (-signal.SIGKILL, "")
