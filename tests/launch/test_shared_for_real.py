"""The workers of a local job have one parent of their ranks together: its imports are made once a job, and a worker that
comes later makes none.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.faults import targets
from support.kept_machine import Machine
from support.patience import HANG_S
from support.scenario import wait_until
from trainjob.launch.local.slow_start import WAITS_FOR_KEPT
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, tempfile, time, trainjob
import noting
context = trainjob.get_context()
rank = context.get_world_rank()
print("rank", rank, "has", noting.VERSION, "given", *sys.argv[1:], "from", os.getppid(), flush=True)
assert os.path.isdir(tempfile.gettempdir())
with open(f"begins{rank}", "w") as file:
    file.write(str(os.getppid()))
os.replace(file.name, f"trains{rank}")  # with its number at once: who finds it reads it
while "wait" in sys.argv and not os.path.exists("go"):
    trainjob.barrier()
    time.sleep(0.05)
trainjob.report({"loss": 1.0}, step=0)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, SCRIPT)


def agent_of(machine: Machine, rank: int) -> int:
    return int((machine.job / f"trains{rank}").read_text())


def test_all_workers_have_what_was_imported_once(machine: Machine) -> None:
    code, out, err = machine.tj(*machine.words("a"))
    assert code == contract.CLI_OK, err
    assert "rank 0 has 1 given a" in out and "rank 1 has 1 given a" in out
    assert machine.imports == 1
    assert not machine.parents(), "it goes with the job"


def test_who_waits_for_a_long_import_is_told_so(machine: Machine) -> None:
    """No worker is there yet, so none tells of it."""
    hangs = "\nimport time\nwhile not os.path.exists({!r}):\n    time.sleep(0.02)\n"
    machine.module.write_text(machine.module.read_text() + hangs.format(str(machine.job / "imports")))
    with machine.start(*machine.words("a")) as running:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        assert any(WAITS_FOR_KEPT in line for line in lines)
        (machine.job / "imports").touch()
        rest = list(lines)
    assert running.returncode == contract.CLI_OK, rest
    assert not any(WAITS_FOR_KEPT in line for line in rest), "it is said once"


def test_each_worker_shows_its_own_processes(machine: Machine) -> None:
    """What is forked for a worker has the worker's variables in /proc, by which people and agents find it."""
    job = machine.start(*machine.words("wait", more=("--name", "shown")))
    wait_until(machine.trains)
    found = targets.processes(tempfile.gettempdir(), "shown")
    (machine.job / "go").touch()
    out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == contract.CLI_OK, out + err
    seen = {(each.kind, each.slot, each.rank) for each in found}
    expected = {(targets.AGENT, -1), (targets.WARM_PARENT, -1), (targets.RANK, 0), (targets.RANK, 1)}
    assert {(kind, rank) for kind, _, rank in seen} >= expected, found
    assert {slot for kind, slot, _ in seen if kind == targets.WARM_PARENT} == {0, 1}, found


def test_a_worker_that_takes_a_lost_ones_place_imports_nothing(machine: Machine) -> None:
    job = machine.start(*machine.words("wait"))
    wait_until(machine.trains)
    lost = agent_of(machine, 1)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: agent_of(machine, 1) != lost or job.poll() is not None)
    (machine.job / "go").touch()
    out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == contract.CLI_OK, out + err
    assert re.search(r"attempt 2 started", err) and machine.imports == 1


KEEPING = """
import os
class StorageWeakRef:
    __module__ = "torch.multiprocessing.reductions"
    def __del__(self, write=os.write):
        write(2, b"taken apart\\n")
kept = StorageWeakRef()
class default_generator:
    seed = staticmethod(lambda: None)
"""
"""In torch's place. Of a kind that torch keeps until Python takes its modules apart; what else is told of, see tests/session."""


@pytest.mark.parametrize("more", [(), ("--keep-warm", "10m")])
def test_its_ranks_end_at_once(machine: Machine, more: tuple[str, ...]) -> None:
    """Nothing that the parent was amid of as it imported keeps a rank from leaving Python's own half second out."""
    packages = machine.job.parent / "lib" / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(KEEPING)
    machine.module.write_text(machine.module.read_text() + "import torch\n")
    paths = os.pathsep.join([str(packages), machine.environ["PYTHONPATH"]])
    try:
        for _ in range(1 + bool(more)):
            code, out, err = machine.tj(*machine.words("a", more=more), PYTHONPATH=paths)
            assert code == contract.CLI_OK and "rank 1 has 1" in out, err
            assert "taken apart" not in out + err
    finally:
        machine.tj("stop", "--warm")


@pytest.mark.parametrize("when", ["while it imports", "while agents run"])
def test_without_it_agents_make_their_own(machine: Machine, when: str) -> None:
    early = when == "while it imports"
    if early:
        hold = (
            "\nimport time\nif not any(name.startswith('TRAINJOB_JOB') for name in os.environ):\n    time.sleep(600)\n"
        )
        machine.module.write_text(machine.module.read_text() + hold)
    job = machine.start(*machine.words("wait"))
    wait_until(lambda: machine.imports == 1 if early else machine.trains())
    (parent,) = machine.parents()
    os.kill(parent, signal.SIGKILL)
    wait_until(machine.trains)
    if early:
        assert machine.imports == 3, "each agent has made one"
    else:
        lost = agent_of(machine, 1)
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: agent_of(machine, 1) != lost or job.poll() is not None)
        assert machine.imports == 2, "the new agent has made one"
    (machine.job / "go").touch()
    out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == contract.CLI_OK, out + err
    assert err.count("each worker imports for itself from now on") == 1, err


def test_it_goes_when_its_launcher_is_killed(machine: Machine) -> None:
    job = machine.start(*machine.words("wait"))
    wait_until(machine.trains)
    assert len(machine.parents()) == 1 and len(machine.between()) == 2
    job.kill()
    job.communicate(timeout=HANG_S)
    wait_until(lambda: not machine.parents())


def test_a_launcher_that_is_killed_before_it_has_agents_leaves_no_folder(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    hold = "\nimport time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    machine.module.write_text(machine.module.read_text() + hold)
    job = machine.start(*machine.words("a"), TMPDIR=str(tmp_path / "tmp"))
    wait_until(lambda: machine.imports == 1)
    assert list((tmp_path / "tmp").glob("trainjob-run-*"))
    job.kill()
    job.communicate(timeout=HANG_S)
    (machine.job / "go").touch()
    wait_until(lambda: not machine.parents())
    wait_until(lambda: not list((tmp_path / "tmp").glob("trainjob-run-*")))
    assert not machine.trains()


def test_a_job_that_is_stopped_does_not_wait_for_its_imports(machine: Machine) -> None:
    hold = "\nimport time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    machine.module.write_text(machine.module.read_text() + hold)
    job = machine.start(*machine.words("a"))
    wait_until(lambda: machine.imports == 1)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=HANG_S)
    assert job.returncode == contract.CLI_INTERRUPTED and not machine.parents()
    assert not machine.trains()


def test_what_is_imported_ahead_is_not_old(machine: Machine) -> None:
    """A package that was installed anew while the job runs: a new worker's ranks have it as a plain one would."""
    job = machine.start(*machine.words("wait"))
    wait_until(machine.trains)
    machine.write(22)  # of another size: Python's own cache knows files by seconds
    lost = agent_of(machine, 1)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: agent_of(machine, 1) != lost or job.poll() is not None)
    (machine.job / "go").touch()
    out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == contract.CLI_OK and "rank 1 has 22" in out, out + err


STATE = """
import os, resource, trainjob
for who, pid in (("agent", os.getppid()), ("rank", os.getpid())):
    rows = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status"))
    soft = resource.prlimit(pid, resource.RLIMIT_CORE)[0]
    shown = [rows[name].strip() for name in ("Umask", "SigBlk", "SigIgn", "Cpus_allowed_list")]
    print(who, trainjob.get_context().get_world_rank(), *shown, soft, flush=True)
trainjob.report({"loss": 1.0}, step=0)
"""


def test_an_agent_has_nothing_of_what_imports_have_changed(tmp_path: Path) -> None:
    """As one that was started by the launcher; its ranks have it, as under plain Python. Torch does such a thing with
    OMP_PROC_BIND: it binds the process that imports it to one core.
    """
    machine = Machine(tmp_path, STATE)
    changes = """
import os, resource, signal
os.umask(0o77)
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
"""
    machine.module.write_text(machine.module.read_text() + changes)
    seen: list[list[str]] = []
    for prefork in ("Always", "Never"):
        (machine.job / "train.py").write_text(STATE if prefork == "Always" else f"import noting\n{STATE}")
        code, out, err = machine.tj(*machine.words(more=("--prefork", prefork)))
        assert code == contract.CLI_OK, err
        seen.append(sorted(re.findall(r"(?:agent|rank) [01] .*", out)))
    assert seen[0] == seen[1]
    assert machine.imports == 3, "once for both, then by each"


LOWERS = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard - 1))
"""
"""A limit, for good. Unlike a priority it can always be lowered, whatever the tests were started with."""


def test_what_no_agent_could_be_without_is_each_workers_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SCRIPT)
    machine.module.write_text(machine.module.read_text() + LOWERS)
    code, _, err = machine.tj(*machine.words("a"))
    assert code == contract.CLI_OK and machine.imports == 3, err


FAILS = """
_fork = os.fork
def fork():
    import sys
    frame = sys._getframe(1)
    if frame.f_code.co_name == "_agent" and "warm" in frame.f_code.co_filename:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return _fork()
os.fork = fork
"""


def test_a_process_that_cannot_become_an_agent_fails_no_attempt(machine: Machine) -> None:
    machine.module.write_text(machine.module.read_text() + FAILS)
    code, out, err = machine.tj(*machine.words("a", more=("--max-failures", "0")))
    assert code == contract.CLI_OK, out + err
    assert machine.imports == 3, "each agent has made one of its own"


FIT = """
import os, sys
from trainjob import RunConfig, ScalingConfig, TorchTrainer

def train():
    import trainjob
    import noting
    trainjob.report({"loss": 1.0, "has": noting.VERSION})

if __name__ == "__main__":
    run = RunConfig(storage_path=os.path.abspath("store"), prefork="Always", preload=["noting"])
    metrics = TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit().metrics
    open("metrics", "w").write(str(metrics))
"""


@pytest.mark.parametrize("streams", ["", "<&- >&- 2>&-"])
def test_the_workers_of_fit_have_it_too(machine: Machine, streams: str) -> None:
    """Also where the program that calls it has no standard streams: what is opened next has their numbers."""
    (machine.job / "fit.py").write_text(FIT)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" fit.py {streams}', sys.executable],
        cwd=machine.job,
        env=machine.environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'has': 1" in (machine.job / "metrics").read_text()
    assert machine.imports == 1
    assert not machine.parents()
