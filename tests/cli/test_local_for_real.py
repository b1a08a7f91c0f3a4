"""A job's local life as processes: in the background, looked at, stopped, gone on with, extended, its launcher killed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from support.scenario import wait_until
from trainjob_api import contract

pytestmark = pytest.mark.slow

STEPS = """
import os, sys, time, trainjob
found = trainjob.get_checkpoint()
start = found.to_dict()["step"] + 1 if found else 0
print("starts at", start)
for step in range(start, int(sys.argv[1])):
    trainjob.report({"loss": 1 / (step + 1)}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
    while step == 2 and not os.path.exists("go"):
        time.sleep(0.05)
"""


class Machine:
    """`tj` as a user of this machine types it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder / "home")}
        (folder / "train.py").write_text(STEPS)

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "trainjob.cli", *words]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def tj(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out, err

    def saves(self, id_: str) -> None:
        """Until that checkpoint is stored, and `tj list` tells it: asked once there is something to tell."""
        wait_until((self.folder / f"store/default/count/checkpoints/{id_}/.trainjob/manifest.json").exists)
        wait_until(lambda: id_ in self.tj("list")[1])

    def ranks(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.tj("status", name, "-o", "json")[1])["ranks"]
        return found

    def status(self, name: str) -> str:
        return self.tj("status", name)[1].splitlines()[0].split()[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_program_without_standard_streams_runs_a_job_all_the_same(machine: Machine, closed: str) -> None:
    """As some daemons start others: no file of the job may get a stream's number."""
    words = [sys.executable, "-m", "trainjob.cli", "run", "train.py", "--name", "count", "--storage", "store"]
    (machine.folder / "go").touch()
    command = f"exec {shlex.join([*words, '--workers', '2', '--', '4'])} {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=machine.folder,
        env=machine.environment,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == contract.CLI_OK, done.stderr.decode()
    assert machine.status("count") == "Complete"


@pytest.mark.parametrize("full", ["1>/dev/full", "2>/dev/full"])
def test_a_job_whose_output_is_on_a_full_disk_trains_to_its_end(machine: Machine, full: str) -> None:
    words = [sys.executable, "-m", "trainjob.cli", "run", "train.py", "--name", "count", "--storage", "store"]
    (machine.folder / "go").touch()
    command = ["sh", "-c", f"exec {shlex.join([*words, '--', '4'])} {full}"]
    done = subprocess.run(command, cwd=machine.folder, env=machine.environment, timeout=HANG_S, check=False)
    assert done.returncode == contract.CLI_OK
    assert machine.status("count") == "Complete"


IN_PROCESS = {
    "init": """
import trainjob
trainjob.init(name="count", storage="store")
trainjob.report({"loss": 1.0})
""",
    "fit": """
import trainjob
trainjob.DataParallelTrainer(
    lambda: trainjob.report({"loss": 1.0}),
    scaling_config=trainjob.ScalingConfig(num_workers=0),
    run_config=trainjob.RunConfig(name="count", storage_path="store"),
).fit()
""",
}


@pytest.mark.parametrize(
    ("asked", "closed"), [("init", "2>&-"), ("fit", "2>&-"), ("init", "0<&- 1>&- 2>&-"), ("fit", "0<&- 1>&- 2>&-")]
)
def test_a_program_without_standard_streams_is_a_job_itself_all_the_same(
    machine: Machine, asked: str, closed: str
) -> None:
    (machine.folder / "own.py").write_text(IN_PROCESS[asked])
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} own.py {closed}"],
        cwd=machine.folder,
        env=machine.environment,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == contract.CLI_OK
    assert machine.status("count") == "Complete"


def test_a_job_in_the_background_is_seen_stopped_gone_on_with_and_extended(machine: Machine) -> None:
    code, out, err = machine.tj("run", "train.py", "--name", "count", "--storage", "store", "--detach", "--", "4")
    assert code == contract.CLI_OK, err
    assert "count runs in the background" in out and "tj attach count" in out
    assert machine.status("count") == "Running"
    typed = "tj run train.py --name count --storage store -- 4\n"
    assert f"command   {typed}" in machine.tj("status", "count")[1], "what was typed, and no more"
    code, _, err = machine.tj("run", "train.py", "--name", "count", "--storage", "store", "--detach", "--", "4")
    assert code == contract.CLI_ERROR and "is running already" in err, "what its launcher says is not lost"
    assert machine.status("count") == "Running", "nor is the record of the first"
    attached = machine.start("attach", "count")
    assert attached.stdout is not None
    assert next((line for line in attached.stdout if "r00 | starts at 0" in line), None), "it shows what was printed"
    machine.saves("1-1-3")
    code, _, err = machine.tj("stop", "count")
    assert code == contract.CLI_OK and "count is stopped" in err
    _, err = attached.communicate(timeout=HANG_S)
    assert attached.returncode == contract.CLI_STOPPED and "count was stopped" in err
    assert machine.tj("stop", "count")[0] == contract.CLI_ERROR, "it does not run"
    (machine.folder / "go").touch()
    code, out, err = machine.tj("run", "train.py", "--name", "count", "--storage", "store", "--", "4")
    assert code == contract.CLI_OK and "starts at 3" in out, err
    code, out, err = machine.tj("attach", "count")
    assert code == contract.CLI_OK and "count completed" in err, "of an ended job it tells how it ended"
    words = ("run", "train.py", "--name", "count", "--storage", "store", "--resume-from", "count", "--", "6")
    code, out, err = machine.tj(*words)
    assert code == contract.CLI_OK and "starts at 4" in out, "a completed job is extended"
    code, out, err = machine.tj("logs", "count", "--rank", "0")
    assert out == "r00 | starts at 4\n" and "of the newest of 3 runs" in err
    runs, _, reports = machine.tj("history", "count")[1].partition("\nREPORT ")
    assert re.findall(r"^(\d) .+ (Complete|Stopped) ", runs, re.MULTILINE) == [
        ("3", "Complete"),
        ("2", "Complete"),
        ("1", "Stopped"),
    ]
    assert re.findall(r"^(\d+) +(\d)", reports, re.MULTILINE) == [("5", "4"), ("6", "5")]
    assert machine.tj("rm", "count", "-y")[0] == contract.CLI_OK
    assert not (machine.folder / "store").exists() or not list((machine.folder / "store").rglob("*.jsonl"))


def test_a_job_begins_in_the_background_also_where_nothing_can_be_said(machine: Machine) -> None:
    words = ("run", "train.py", "--name", "count", "--storage", "store", "--detach", "--", "4")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainjob.cli", *words],
            cwd=machine.folder,
            env=machine.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == contract.CLI_OK, done.stderr
    assert machine.status("count") == "Running"
    assert machine.tj("stop", "count")[0] == contract.CLI_OK


def test_each_rank_is_named_with_its_process_which_can_be_killed(machine: Machine) -> None:
    (machine.folder / "train.py").write_text("import time, trainjob\ntrainjob.report({}, step=1)\ntime.sleep(3600)\n")
    words = ("run", "train.py", "--name", "stay", "--storage", "store", "--workers", "2", "--detach")
    code, _, err = machine.tj(*words)
    assert code == contract.CLI_OK, err
    wait_until(
        lambda: all(each["pid"] for each in machine.ranks("stay")) and "step 1" in machine.tj("status", "stay")[1]
    )
    before = machine.ranks("stay")
    assert [(each["rank"], each["attempt"], each["worker"]) for each in before] == [(0, 1, "stay-0"), (1, 1, "stay-1")]
    assert all(each["memoryBytes"] > 1 << 20 for each in before)
    assert re.search(rf"^1 +{before[1]['pid']} +stay-1 +\S+ MiB$", machine.tj("status", "stay")[1], re.M)
    os.kill(before[1]["pid"], signal.SIGKILL)
    wait_until(lambda: [each["attempt"] for each in machine.ranks("stay") if each["pid"]] == [2, 2])
    assert {each["pid"] for each in machine.ranks("stay")}.isdisjoint(each["pid"] for each in before)
    attempts = (
        r"^1 +Started .* KilledBySignal +rank 1 on stay-1 was killed by SIGKILL$",
        r"^2 +KilledBySignal .*\(runs\)$",
    )
    # While it runs, not at its end.
    wait_until(lambda: all(re.search(each, machine.tj("status", "stay")[1], re.M) for each in attempts))
    assert machine.tj("stop", "stay")[0] == contract.CLI_OK
    assert machine.ranks("stay") == []


def test_of_a_loop_in_the_process_that_was_typed_that_one_is_the_rank(machine: Machine) -> None:
    lines = "import time, trainjob\ndef stays():\n    time.sleep(3600)\ntrainjob.report({}, step=1)\nstays()\n"
    (machine.folder / "train.py").write_text(lines)
    typed = machine.start("run", "--in-process", "train.py", "--name", "here", "--storage", "store")
    wait_until(lambda: machine.tj("status", "here")[0] == contract.CLI_OK and machine.ranks("here"))
    wait_until(lambda: [each["pid"] for each in machine.ranks("here")] == [typed.pid])
    wait_until(lambda: "rank 0: in stays (train.py:3)" in machine.tj("stack", "here")[1])
    assert machine.tj("stop", "here")[0] == contract.CLI_OK
    typed.kill()
    typed.communicate()


def test_a_killed_launcher_is_told_and_its_output_and_checkpoints_are_there(machine: Machine) -> None:
    launcher = machine.start("run", "train.py", "--name", "count", "--storage", "store", "--", "4")
    machine.saves("1-1-3")
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    wait_until(lambda: machine.status("count") == "Killed")
    assert "r00 | starts at 0" in machine.tj("logs", "count")[1]
    assert "1-1-3" in machine.tj("checkpoints", "list", "count")[1]


def test_a_state_folder_that_cannot_be_written_costs_a_line_and_no_job(machine: Machine) -> None:
    machine.environment["XDG_STATE_HOME"] = "/proc/nowhere"
    (machine.folder / "go").touch()
    code, out, err = machine.tj("run", "train.py", "--name", "count", "--storage", "store", "--plain", "--", "4")
    assert code == contract.CLI_OK and "starts at 0" in out
    assert err.count("`tj list` cannot be told of this job") == 1
    assert "count completed" in err


APART = """
import time, trainjob

def load_batch():
    time.sleep(600)

rank = trainjob.get_context().get_world_rank()
print("rank", rank, "is there", flush=True)
if rank == 1:
    load_batch()
trainjob.barrier()
"""


def test_where_ranks_stand_is_shown_and_who_stands_elsewhere(machine: Machine) -> None:
    (machine.folder / "train.py").write_text(APART)
    code, _, err = machine.tj("run", "train.py", "--name", "apart", "--storage", "store", "--workers", "3", "--detach")
    assert code == contract.CLI_OK, err
    expected = (
        "rank 1 stands elsewhere",
        "2 of 3 ranks (ranks 0, 2): wait in barrier (train.py:11)\n    ... ",
        "\nrank 1: in load_batch (train.py:5)\n",
    )

    def shown() -> bool:
        code, out, err = machine.tj("stack", "apart")
        assert code in (contract.CLI_OK, contract.CLI_ERROR), err
        return code == contract.CLI_OK and all(each in out for each in expected)

    wait_until(shown)
    code, out, err = machine.tj("stack", "apart", "--rank", "1")
    assert code == contract.CLI_OK and out.startswith("rank 1:\n") and 'train.py", line 5 in load_batch' in out
    assert machine.tj("stack", "apart", "--rank", "7")[0] == contract.CLI_NOT_FOUND
    assert machine.status("apart") == "Running", "being asked does nothing to it"
    assert machine.tj("stop", "apart")[0] == contract.CLI_OK
    assert machine.tj("stack", "apart")[0] == contract.CLI_ERROR, "it does not run"


FOLLOWED = """
import os, time, trainjob

def loop():
    trainjob.report({"loss": 1.0})
    deadline = time.monotonic() + HANG_S
    while not os.path.exists("heard"):
        assert time.monotonic() < deadline, "nobody heard of the report"
        time.sleep(0.05)

class Hears(trainjob.UserCallback):
    def on_report(self, run_context, report):
        open("heard", "w").close()

trainjob.DataParallelTrainer(
    loop,
    scaling_config=trainjob.ScalingConfig(num_workers=1),
    run_config=trainjob.RunConfig(name="count", storage_path="store", callbacks=[Hears()]),
).fit()
"""


def test_a_callback_hears_of_a_report_before_the_next_one(machine: Machine) -> None:
    (machine.folder / "followed.py").write_text(FOLLOWED.replace("HANG_S", str(HANG_S)))
    done = subprocess.run(
        [sys.executable, "followed.py"],
        cwd=machine.folder,
        env=machine.environment,
        capture_output=True,
        timeout=2 * HANG_S,
        check=False,
    )
    assert done.returncode == contract.CLI_OK, done.stderr.decode()
