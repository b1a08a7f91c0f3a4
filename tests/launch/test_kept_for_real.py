"""A process that `tj run --keep-warm` leaves: the next job imports nothing again, and never what is out of date."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support import kept_machine
from support.patience import HANG_S
from support.scenario import wait_until
from trainjob.launch.local.kept import line, making, note
from trainjob_api import contract
from trainjob_api.warm_messages import TO_KEPT, Done, Stay, Take, Took, packet

pytestmark = pytest.mark.slow

TIME = "20s"
"""Of a process that is to end by itself: enough for its imports on a busy machine."""
SCRIPT = """
import os, sys, time, trainjob
import noting
context = trainjob.get_context()
print("rank", context.get_world_rank(), "has", noting.VERSION, "given", *sys.argv[1:], "in", os.getcwd(), flush=True)
if "raise" in sys.argv:
    trainjob.barrier()  # both have said the line
    if context.get_world_rank() == 1:
        raise ValueError("on purpose")
if "die" in sys.argv and os.environ["TRAINJOB_ATTEMPT"] == "1":
    trainjob.barrier()
    os.kill(os.getpid(), 9) if context.get_world_rank() == 1 else time.sleep(600)
if "wait" in sys.argv:
    open(f"trains{context.get_world_rank()}", "w").close()
while "wait" in sys.argv and not os.path.exists("go"):
    time.sleep(0.05)
trainjob.report({"loss": 1.0}, step=0)
"""


class Machine(kept_machine.Machine):
    """On which a process is kept. That of a job's own workers goes with the job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SCRIPT)

    def run(self, *arguments: str, keep: str = "10m", **environ: str) -> tuple[int, str, str]:
        return self.tj(*self.words(*arguments, more=("--keep-warm", keep)), **environ)

    def kept(self) -> list[int]:
        return self.parents()

    def sockets(self) -> list[Path]:
        return list(self.state.rglob("*.sock"))

    def hears(self) -> None:
        """Until the one that is kept answers: all its imports are done. It stays for ten minutes from now."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(self.state))
            found = note.find()
            assert found is not None
            assert isinstance(line.ask(note.door(found), Stay(making.now() + 600), HANG_S), Done)


@pytest.fixture
def machine(tmp_path: Path):  # type: ignore[no-untyped-def]
    found = Machine(tmp_path)
    yield found
    found.tj("stop", "--warm")
    wait_until(lambda: not found.kept())


def kept_once(machine: Machine, imports: int) -> None:
    """One process is kept, and it has imported all: by then the module was imported so often."""
    wait_until(lambda: machine.imports == imports)
    wait_until(lambda: len(machine.kept()) == 1)
    machine.hears()


def test_the_next_job_imports_nothing_and_ends_as_any(machine: Machine) -> None:
    code, out, err = machine.run("first")
    assert code == contract.CLI_OK and "a warm process stays" in err, err
    kept_once(machine, 2)  # the parent of its workers, and the one that is kept
    for argument, expected in (
        ("second", contract.CLI_OK),
        ("die", contract.CLI_OK),
        ("raise", contract.CLI_JOB_FAILED),
    ):
        code, out, err = machine.run(argument)
        assert code == expected, err
        for rank in (0, 1):
            assert f"rank {rank} has 1 given {argument} in {machine.job}" in out
        assert machine.imports == 2 and "cold" not in err, err
    assert "ValueError: on purpose" in err
    assert len(machine.kept()) == 1


def test_what_was_edited_meanwhile_is_imported_again(machine: Machine) -> None:
    machine.run("first")
    kept_once(machine, 2)
    (before,) = machine.kept()
    machine.write(22)
    code, out, err = machine.run("second")
    assert code == contract.CLI_OK and "rank 0 has 22" in out and "rank 1 has 22" in out
    assert err.count("this start is cold") == 1 and "noting.py has changed since it was imported" in err, err
    kept_once(machine, 4)
    assert machine.kept() != [before]
    assert "rank 0 has 22" in machine.run("third")[1] and machine.imports == 4


def test_another_environment_is_a_cold_start_that_says_why(machine: Machine) -> None:
    machine.run("first")
    kept_once(machine, 2)
    code, _, err = machine.run("second", LIBRARY_KNOB="2")
    assert code == contract.CLI_OK and "variable LIBRARY_KNOB is another" in err and machine.imports >= 3
    kept_once(machine, 4)
    code, _, err = machine.run("third", LIBRARY_KNOB="2", SSH_TTY="/dev/pts/7")
    assert code == contract.CLI_OK and "cold" not in err and machine.imports == 4, "a terminal's own is no library's"


def test_it_is_listed_and_ended_and_jobs_go_on(machine: Machine) -> None:
    machine.run("first")
    kept_once(machine, 2)
    (pid,) = machine.kept()
    assert f"process {pid} is kept warm" in machine.tj("list")[2]
    second = machine.start(*machine.words("wait", more=("--keep-warm", "10m")))
    wait_until(machine.trains)
    code, _, err = machine.tj("stop", "--warm")
    assert code == contract.CLI_OK and f"warm process {pid} has ended" in err
    wait_until(lambda: not machine.kept())
    assert not machine.sockets()
    (machine.job / "go").touch()
    out, err = second.communicate(timeout=HANG_S)
    assert second.returncode == contract.CLI_OK, out + err
    assert "no process is kept warm" not in machine.tj("stop", "--warm")[2], "that job has left another"
    assert "no process is kept warm" in machine.tj("stop", "--warm")[2]


def test_it_ends_by_itself(machine: Machine) -> None:
    assert machine.run("first", keep=TIME)[0] == contract.CLI_OK
    wait_until(lambda: machine.imports == 2 and not machine.kept() and not machine.sockets())
    assert "kept warm" not in machine.tj("list")[2]
    code, _, err = machine.run("second", keep="1s")
    assert code == contract.CLI_OK and "cold" not in err, "its time was over: nothing to tell"


def test_who_gives_up_before_the_start_gets_no_agent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.run("first")
    kept_once(machine, 2)
    monkeypatch.setenv("XDG_STATE_HOME", str(machine.state))
    found = note.find()
    assert found is not None
    with line._connected(note.door(found), HANG_S) as given_up:
        given_up.send(packet(TO_KEPT, Take()))
        took = line._answer(given_up)
        assert isinstance(took, Took) and os.path.exists(f"/proc/{took.pid}")
    wait_until(lambda: not machine.between())
    assert not os.path.exists(f"/proc/{took.pid}") and machine.kept() == [found.pid]
    assert "cold" not in machine.run("second")[2]


def test_an_import_that_never_ends_ends_with_its_time(machine: Machine) -> None:
    hangs = (
        "\nimport time\nif 'trainjob-run-' not in os.environ.get('TMPDIR', ''):\n    time.sleep(600)\n"  # in no job's
    )
    machine.module.write_text(machine.module.read_text() + hangs)
    code, _, err = machine.run("first", keep=TIME)
    assert code == contract.CLI_OK and "a warm process stays" in err
    wait_until(lambda: machine.imports == 2 and not machine.kept())
    code, _, err = machine.run("second", keep="1s")
    assert code == contract.CLI_OK and machine.imports >= 3, err


def test_agents_of_whose_end_nobody_would_tell_go_on(machine: Machine) -> None:
    machine.run("first")
    kept_once(machine, 2)
    second = machine.start(*machine.words("wait", more=("--keep-warm", "10m", "--max-failures", "0")))
    wait_until(machine.trains)
    between = machine.between()
    assert len(between) == 2
    for pid in between:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not machine.between())
    (machine.job / "go").touch()
    out, err = second.communicate(timeout=HANG_S)
    assert second.returncode == contract.CLI_OK, out + err
    assert "attempt 2" not in err and machine.imports == 2, err


def test_a_state_folder_that_others_can_reach_is_not_used(machine: Machine) -> None:
    folder = machine.state / "trainjob" / "warm" / os.uname().nodename
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    code, _, err = machine.run("first")
    assert code == contract.CLI_OK and "nothing is kept warm" in err and "0700" in err
    assert not machine.kept() and machine.imports == 1
