"""Two real agents: attempts begin, end in every way, are held, restarted, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support import agent_rig
from support.agent_rig import Rig, processes_with
from support.cut_proxy import CutProxy
from support.patience import HANG_S
from support.tuned_agent import entry
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.reading.runs import write_end
from trainjob.checkpoint.stores.opening import open_store
from trainjob_api import contract

pytestmark = pytest.mark.slow

FOREVER = "import time, trainjob\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"


def test_ranks_know_their_place_and_the_run_completes(tmp_path: Path) -> None:
    script = (
        "import os, trainjob\nc = trainjob.get_context()\n"
        "print(*[os.environ[n] for n in "
        "('RANK','LOCAL_RANK','WORLD_SIZE','LOCAL_WORLD_SIZE','NODE_RANK','MASTER_ADDR','TRAINJOB_ATTEMPT','TRAINJOB_RUN')], flush=True)\n"
        "assert os.path.realpath(os.environ['TMPDIR']).endswith('/tmp') and 'TRAINJOB_COORDINATOR' not in os.environ\n"
        "print('port', os.environ['MASTER_PORT'], flush=True)\ntrainjob.report({'loss': c.rank + 0.5}, step=7, "
        "total_steps=9)\n"
    )
    with Rig(tmp_path, script=script, processes=2) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(lambda: all(r["completed"] for r in rig.coordinator.reports.values()), "both say so")
        assert {n: r["kind"] for n, r in rig.ranks(1).items()} == dict.fromkeys(range(4), contract.END_OK)
        assert rig.report(0)["progress"] == rig.report(0)["progress"] | {
            "position": 1,
            "step": 7,
            "total_steps": 9,
            "metrics": {"loss": 0.5},
        }
        assert rig.report(1)["progress"] == rig.report(0)["progress"], "of a complete run all know it"
        rig.exit(0)
        assert (rig.exit_code(0), rig.exit_code(1)) == (0, 0)
        assert "r03 | 3 1 4 2 1 127.0.0.1 1 1" in rig.text(1)
        assert "r00 | 0 0 4 2 0 127.0.0.1 1 1" in rig.text(0)
        (port,) = {line.split()[-1] for slot in (0, 1) for line in rig.text(slot).splitlines() if "| port" in line}
        assert not 32768 <= int(port) <= 60999
        assert "3 1 4 2 1" in (rig.work_dir(1) / "logs" / "rank-3.log").read_text()
        assert not (rig.work_dir(0) / "run").exists()


@pytest.mark.parametrize("launched", [False, True])
def test_in_a_pods_log_another_attempt_says_where_it_begins(tmp_path: Path, launched: bool) -> None:
    environment = {} if launched else {contract.ENV_PARENT_FD: ""}
    with Rig(tmp_path, script=FOREVER, agents=1, env=environment) as rig:
        for number in (1, 2):
            rig.run(number)
            rig.wait(lambda number=number: rig.text(0).count("r00 | up") == number, "it trains")  # type: ignore[misc]
        marks = [line for line in rig.text(0).splitlines() if line.endswith(" | up") or "begins" in line]
        mark = [] if launched else ["agent | attempt 2 begins, from the beginning"]
        assert marks == ["r00 | up", *mark, "r00 | up"]


ENDS = """
import os, signal, sys, trainjob
how = {0: "wait", 1: sys.argv[1]}[trainjob.get_context().rank]
if how == "wait":
    while True:  # a look at its stack ends a pause
        signal.pause()
elif how == "exception":
    raise ValueError("the loss is not a number")
elif how == "os._exit":
    os._exit(7)
elif how == "sys.exit":
    sys.exit(3)
else:
    os.kill(os.getpid(), getattr(signal, how))
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exception", {"kind": contract.END_EXCEPTION, "exit_code": 1, "signal": None}),
        ("os._exit", {"kind": contract.END_EXIT, "exit_code": 7, "signal": None, "error": None}),
        ("sys.exit", {"kind": contract.END_EXIT, "exit_code": 3, "signal": None}),
        ("SIGKILL", {"kind": contract.END_SIGNAL, "exit_code": None, "signal": 9, "error": None}),
        ("SIGSEGV", {"kind": contract.END_SIGNAL, "exit_code": None, "signal": 11}),
    ],
)
def test_how_a_rank_ended(tmp_path: Path, how: str, expected: dict[str, Any]) -> None:
    began = time.time()
    with Rig(tmp_path, script=ENDS, command=[sys.executable, "train.py", how]) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(1), "rank 1 ended")
        rank = rig.rank(1)
        assert rank | expected == rank
        assert began - 1 < rank["ended_at"] < rig.report(1)["clock"] + 1
        if how == "SIGSEGV":
            assert rank["error"]["message"] == "Segmentation fault"
            assert rank["error"]["traceback"].splitlines()[-2:] == [
                f'  File "{rig.folder / "job" / "train.py"}", line {len(ENDS.splitlines())}, in <module>',
                "Fatal Python error: Segmentation fault",
            ]
        if how == "sys.exit":
            assert (rank["error"]["type"], rank["error"]["message"]) == ("SystemExit", "")
            assert "train.py" in rank["error"]["traceback"]
        if how == "exception":
            assert rank["error"]["type"] == "ValueError"
            assert "the loss is not a number" in rank["error"]["message"]
            assert "train.py" in rank["error"]["traceback"]
        rig.wait(lambda: rig.report(1)["quiet"], "agent 1 quiet")
        rig.wait(lambda: rig.running(0), "what agent 0 has told of since its rank was started")
        assert not rig.report(0)["quiet"], "the other rank goes on until the coordinator speaks"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable, "nowhere.py"], ["'nowhere.py'", "cwd"]),
        (["no-such-program", "x"], ["'no-such-program'", "PATH"]),
        ([sys.executable, "broken.py"], ["SyntaxError"]),
        ([sys.executable, "-m", "no.such.module"], ["no.such.module"]),
    ],
)
def test_a_command_that_cannot_run_is_a_start_error_not_a_crash(
    tmp_path: Path, command: list[str], words: list[str]
) -> None:
    with Rig(tmp_path, agents=1, command=command) as rig:
        (rig.work / "broken.py").write_text("def f(:\n")
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "rank 0 ended")
        rank = rig.rank(0)
        assert rank["kind"] == contract.END_START
        text = f"{rank['error']['type']} {rank['error']['message']}"
        assert all(word in text for word in words), text
        rig.wait(lambda: rig.report(0)["quiet"])


def test_a_python_that_cannot_import_the_library_is_named_as_such(tmp_path: Path) -> None:
    wrong = tmp_path / "python3"
    wrong.write_text("#!/bin/sh\necho \"$0: No module named 'trainjob'\" >&2\nexit 1\n")
    wrong.chmod(0o755)
    with Rig(tmp_path, script="", agents=1, command=[str(wrong), "train.py"]) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert rig.rank(0)["kind"] == contract.END_START
        assert (
            "This Python cannot run a rank" in rig.rank(0)["error"]["message"]
            and "No module named" in rig.rank(0)["error"]["message"]
        )


def test_a_file_beside_the_script_that_hides_a_module_of_pythons_is_to_be_renamed(tmp_path: Path) -> None:
    with Rig(tmp_path, script="", agents=1) as rig:
        (rig.work / "random.py").write_text("def randint():\n    return 1\n")
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        message = rig.rank(0)["error"]["message"]
        assert f"{rig.work}/random.py hides Python's own module random: rename it." in message
        assert rig.rank(0)["kind"] == contract.END_START and "3.9" not in message


@pytest.mark.parametrize(("flags", "option"), [("-IS", "-I"), ("-uES", "-E")])
def test_an_option_that_hides_the_library_is_named(tmp_path: Path, flags: str, option: str) -> None:
    """-S stands for an image in which trainjob is not installed: then PYTHONPATH is the only way to it."""
    command = [sys.executable, flags, "train.py"]
    with Rig(tmp_path, script="", agents=1, command=command) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert rig.rank(0)["kind"] == contract.END_START
        message = rig.rank(0)["error"]["message"]
        assert (
            f"With {option} Python ignores PYTHONPATH" in message
            and f"leave {option} out" in message
            and "3.9" not in message
        )


def test_a_restart_kills_what_is_left_with_its_children_and_starts_anew(tmp_path: Path) -> None:
    script = (
        "import os, signal, subprocess, sys, time, trainjob\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('attempt', os.environ['TRAINJOB_ATTEMPT'], 'child', child.pid, flush=True)\n"
        "trainjob.barrier()\nprint('together', flush=True)\ntime.sleep(600)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait_text(0, "together")
        rig.wait_text(1, "together")
        old = [rig.pid_of(n) for n in (0, 1)] + [
            int(line.split()[-1]) for s in (0, 1) for line in rig.text(s).splitlines() if "child" in line
        ]
        rig.kill_rank(1)
        rig.wait(lambda: rig.ended(1))
        rig.run(2)
        rig.wait(lambda: rig.running(0, 1, attempt=2), "attempt 2 runs")
        assert [pid for pid in old if Path(f"/proc/{pid}").exists()] == []
        stopped = [
            r
            for report in rig.coordinator.log
            if report["slot"] == 0 and report["attempt"] == 1
            for r in report["ranks"]
            if r["state"] == contract.RANK_ENDED
        ]
        # Where the next attempt begins before the agent has told of it, its end is told by nobody: the operator knew.
        assert all(r["kind"] == contract.END_STOPPED for r in stopped)


def test_hold_gives_the_ranks_their_grace_and_the_same_attempt_never_runs_again(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time, trainjob\n"
        "def leave(*_):\n    print('leaving', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\ntrainjob.get_context()\nprint('up', flush=True)\nwhile True: "
        "time.sleep(0.05)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.wait_text(1, "up")
        rig.hold(grace_s=HANG_S)
        rig.wait(lambda: rig.ended(0, 1) and rig.report(0)["quiet"] and rig.report(1)["quiet"], "all stopped")
        assert {r["kind"] for r in rig.ranks().values()} == {contract.END_STOPPED}
        rig.wait_text(0, "leaving")
        rig.run(1)
        rig.wait(
            lambda: all(
                (r["acknowledged"] or {}).get("do") == contract.DO_RUN for r in rig.coordinator.reports.values()
            )
        )
        assert rig.ended(0, 1)
        rig.run(2)
        rig.wait(lambda: rig.running(0, 1, attempt=2), "attempt 2")


def test_hold_during_the_join_then_the_same_attempt_begins(tmp_path: Path) -> None:
    with Rig(tmp_path, script=FOREVER) as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 2)
        rig.run_one(1, 1, 1, [0, 1])
        rig.wait(lambda: rig.report(1)["attempt"] == 1)
        assert not rig.report(1)["joined"]
        rig.coordinator.tell(1, do=contract.DO_HOLD, grace_s=0)
        rig.wait(lambda: (rig.report(1)["acknowledged"] or {}).get("do") == contract.DO_HOLD)
        rig.run(1)
        rig.wait_text(0, "up")
        rig.wait_text(1, "up")


def test_a_member_that_goes_away_during_the_join_hangs_nobody(tmp_path: Path) -> None:
    with Rig(tmp_path, script=FOREVER, agents=3) as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 3)
        proxy = CutProxy(rig.coordinator.reports[0]["address"])
        rig.run_one(0, 1, 0, [0, 1, 2])
        rig.run_one(1, 1, 1, [0, 1, 2], leader=proxy.address)
        rig.wait(lambda: b'{"op":"hello"}' in proxy.answers, "its leader has let it in")
        rig.agents[1].process.kill()
        rig.exit_code(1)
        rig.wait(lambda: rig.report(0)["lost_peers"] == [1], "its leader noticed")
        rig.run(2, members=[0, 2])
        rig.wait(lambda: rig.running(0, 1, attempt=2), "the others go on")
        assert rig.report(0)["lost_peers"] == []
        proxy.close()


def test_a_restarted_agent_never_starts_an_attempt_twice(tmp_path: Path) -> None:
    with Rig(tmp_path, script=FOREVER) as rig:
        rig.run(1)
        rig.wait_text(1, "up")
        pid = rig.pid_of(1)
        rig.agents[1].process.kill()
        rig.exit_code(1)
        rig.wait(lambda: not Path(f"/proc/{pid}").exists(), "its rank died with it")
        rig.start(1)
        rig.wait(lambda: rig.report(1)["boot"] == 2 and rig.ended(1), "lost ranks reported")
        assert rig.rank(1)["kind"] == contract.END_LOST
        rig.run(2)
        rig.wait(lambda: rig.running(0, 1, attempt=2), "attempt 2")


def test_the_leader_agent_is_restarted_during_the_join(tmp_path: Path) -> None:
    with Rig(tmp_path, script=FOREVER) as rig:
        rig.wait(lambda: len(rig.coordinator.reports) == 2)
        rig.run_one(1, 1, 1, [0, 1])
        rig.wait(lambda: rig.report(1)["attempt"] == 1)
        rig.agents[0].process.kill()
        rig.exit_code(0)
        rig.wait(lambda: rig.report(1)["lost_peers"] == [0], "the member says whom it misses")
        rig.start(0)
        rig.wait(lambda: rig.report(0)["boot"] == 2)
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1, attempt=1), "both run")
        rig.wait(lambda: rig.report(1)["lost_peers"] == [])


def test_an_agent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    script = "import time, trainjob\ntrainjob.get_context()\nprint('up', flush=True)\ntime.sleep(600)\n"
    with Rig(tmp_path, script=script, agents=1, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        marker = str(rig.work_dir(0))
        assert len(processes_with(marker)) >= 3
        rig.agents[0].process.kill()
        rig.wait(lambda: processes_with(marker) == [], "rank and storage child are gone")


def test_two_jobs_on_one_machine_use_different_master_ports(tmp_path: Path) -> None:
    script = (
        "import os, time, trainjob\nprint('port', os.environ['MASTER_PORT'], "
        "flush=True)\ntrainjob.barrier()\ntime.sleep(600)\n"
    )
    with Rig(tmp_path / "one", script=script) as one, Rig(tmp_path / "two", script=script) as two:
        one.run(1)
        two.run(1)
        one.wait_text(1, "port")
        two.wait_text(1, "port")
        ports = {line for rig in (one, two) for line in rig.text(1).splitlines() if "port" in line}
        assert len(ports) == 2


def test_a_launcher_runs_once_a_pod_with_its_own_names(tmp_path: Path) -> None:
    words = "echo $PET_NNODES $PET_NPROC_PER_NODE $PET_NODE_RANK $PET_MAX_RESTARTS $RANK $WORLD_SIZE $LOCAL_WORLD_SIZE"
    with Rig(tmp_path, processes=4, command=["sh", "-c", words]) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait_text(1, "r01 | 2 4 1 0 1 2 1")


def test_work_dirs_with_spaces_unicode_and_long_paths(tmp_path: Path) -> None:
    folder = tmp_path / "räume und plätze" / ("lang" * 25)
    with Rig(folder, script="import trainjob\ntrainjob.report({})\n", agents=1) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.exit(0)
        assert rig.exit_code(0) == 0
    assert [name for name in os.listdir("/tmp") if name.startswith(f"trainjob-{rig.pod_uid(0)[:8]}")] == []


def test_signals_are_forwarded(tmp_path: Path) -> None:
    script = (
        "import signal, time, trainjob\nsignal.signal(signal.SIGUSR1, lambda *_: print('got it', flush=True))\n"
        "trainjob.get_context()\nprint('up', flush=True)\nwhile True: time.sleep(0.05)\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.agents[0].process.send_signal(signal.SIGUSR1)
        rig.wait_text(0, "got it")


@pytest.mark.parametrize("completed", [True, False])
def test_a_fresh_agent_looks_for_the_end_record_and_starts_nothing(tmp_path: Path, completed: bool) -> None:
    store = tmp_path / "store"
    settle(open_store(str(store)), "uid-1", "auto", ())
    if completed:
        write_end(open_store(str(store)), 1, {})
    with Rig(tmp_path, script="print('user code')", storage=store, agents=1) as rig:
        rig.wait(lambda: rig.coordinator.reports, "the agent has reported")
        rig.coordinator.tell(0, do=contract.DO_CHECK, attempt=4)
        rig.wait(lambda: rig.report(0)["checked"] == 4, "it has looked")
        report = rig.report(0)
        assert (report["completed"], report["run"]) == (completed, 1)
        assert (report["ranks"], report["attempt"], report["quiet"]) == ([], 0, True)
        assert "user code" not in rig.text(0)


def test_a_restart_takes_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a turn of the operator, which has other jobs, and on one machine has the ranks' processor. What can wait
    waits for long here, and no poll ends before there is something to say: the next would be a word more.
    """
    monkeypatch.setattr(agent_rig, "HOLD_POLL_S", HANG_S)
    slow = entry(control__sync__QUIET_CHANGE_S=300.0, control__sync__MARGIN_S=HANG_S)
    with Rig(tmp_path, script=FOREVER, agents=2, processes=2, entry=slow) as rig:
        rig.run(1)
        rig.wait(lambda: all(rig.text(slot).count("up") == 2 for slot in (0, 1)))
        rig.wait(lambda: len(rig.ranks(1)) == 4, "that they were started")
        spoke = rig.report(0)["seq"]
        os.kill(rig.pid_of(3, 1), signal.SIGKILL)
        rig.wait(lambda: rig.ended(3, attempt=1), "a break cannot")
        rig.wait(lambda: rig.report(0)["seq"] > spoke, "nor what rank 0's agent knows of progress then")
        before = {slot: rig.report(slot)["seq"] for slot in (0, 1)}
        rig.run(2)
        rig.wait(lambda: all(rig.text(slot).count("up") == 4 for slot in (0, 1)))
        rig.wait(lambda: len(rig.ranks(2)) == 4)
        words = {slot: rig.report(slot)["seq"] - before[slot] for slot in (0, 1)}
        assert words == {0: 2, 1: 2}, "that they know what to do, and that they have done it"
