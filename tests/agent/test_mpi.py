"""mpirun as a command: what is executed where, what it is told, and who is handed what it starts. The real one:
tests/frameworks/test_mpi.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.spoken import said
from trainjob.agent.mpi import one_rank, places, proof, remote_shell
from trainjob.agent.mpi.mpirun_side import Handover
from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank_command import AttemptPlace, RankPlace
from trainjob.agent.wire import handshake
from trainjob_api import command, contract

KEY = proof.key_of("secret of the attempt")


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An mpirun that only says its name."""
    made = tmp_path / "mpirun"
    made.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    made.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return made


def test_it_runs_on_the_first_worker_and_the_others_wait_for_what_it_starts() -> None:
    words = ["mpirun", "--bind-to", "core", "python", "train.py"]
    first, other = rank_command.argv(words, 0), rank_command.argv(words, 1)
    assert [line[5:7] for line in (first, other)] == [[sys.executable, "-I"]] * 2
    assert "mpirun_side" in first[8] and "daemon_side" in other[8]
    assert first[9:] == other[9:] == words


@pytest.mark.parametrize(
    "words", [["sh", "-c", "mpirun python a.py"], ["torchrun", "mpirun"], [sys.executable, "mpirun"]]
)
def test_what_is_no_mpirun_is_left_alone(words: list[str]) -> None:
    assert not command.is_mpi(words)


def test_the_key_is_for_the_sides_of_mpirun_alone() -> None:
    place = RankPlace(1, 0, 2, 1, 1, 2, 1)
    shared = AttemptPlace(2, 1, None, "h", 1, "s", "f", "/tmp", "_m_", mpi_key=KEY)
    assert rank_command.environment({}, ["mpirun", "a"], place, shared)[contract.ENV_MPI_KEY] == KEY
    assert contract.ENV_MPI_KEY not in rank_command.environment({}, ["torchrun", "a"], place, shared)
    assert contract.ENV_MPI_KEY not in places.own_folder({contract.ENV_MPI_KEY: KEY}, "/tmp/own", 5)
    assert "secret" not in KEY


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", True),
        ("mpirun.openmpi (OpenRTE) 4.1.4", True),
        ("mpirun (Open MPI) 5.0.7", False),
        ("HYDRA build details:\n    Version: 4.2.0", False),
        ("", False),
    ],
)
def test_which_mpirun_is_known(version: str, known: bool) -> None:
    assert places.is_known(version) == known


JOB = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: five}
spec:
  workers: 2
  template: {spec: {containers: [{name: trainer, image: x, command: [mpirun, python, train.py]}]}}
  failurePolicy: {maxFailures: 3}
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_an_mpirun_that_is_not_known_is_refused_at_once(program: Path, tmp_path: Path) -> None:
    """And not three times more: another attempt finds the same one."""
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.7'\n")
    (tmp_path / "job.yaml").write_text(JOB)
    words = ["-m", "trainjob.cli.main", "run", "-f", "job.yaml", "--local", "--storage", "."]
    with pytest.raises(AssertionError) as failed:
        said(words, tmp_path, limit_s=HANG_S)
    shown = str(failed.value)
    assert "cannot start: RuntimeError: mpirun is mpirun (Open MPI) 5.0.7: Open MPI 4 is needed" in shown, shown
    assert "CannotStart in attempt 1" in shown and "attempt 2" not in shown


def test_what_the_job_sets_itself_stands_but_for_what_the_start_needs() -> None:
    base = {"OMPI_MCA_hwloc_base_binding_policy": "core", "OMPI_MCA_plm_rsh_agent": "ssh"}
    env = places.environment(base, "/hosts", is_loopback=True, workers=2)
    assert env["OMPI_MCA_hwloc_base_binding_policy"] == "core"
    assert "remote_shell.py" in env["OMPI_MCA_plm_rsh_agent"]
    assert env["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert env["OMPI_MCA_btl"] == "^vader"
    assert "OMPI_MCA_btl" not in places.environment({}, "/hosts", is_loopback=True, workers=1)
    assert not [name for name in places.environment({}, "/hosts", is_loopback=False, workers=2) if "_btl" in name]
    assert places.hosts(3, 2) == "localhost slots=2\nworker-1 slots=2\nworker-2 slots=2\n"


def test_a_path_that_open_mpi_would_take_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    with pytest.raises(places.UnusablePathError, match="spaces or colons"):
        places.environment({}, "/hosts", is_loopback=False, workers=2)


def given(rank: int, local: int, each: int, size: int, worker: int) -> dict[str, str]:
    """What Open MPI and the worker's agent have set."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
        contract.ENV_NODE_RANK: str(worker),
        "PET_NNODES": "2",
        "TMPDIR": "/tmp/mpi_own",
        contract.ENV_MPI_TMPDIR: "/tmp/all",
        contract.ENV_MPI_SOCKET: "/tmp/s",
    }


def test_a_rank_finds_the_names_of_every_job() -> None:
    told = one_rank.told(given(rank=3, local=1, each=2, size=4, worker=1))
    names = (contract.ENV_RANK, contract.ENV_WORLD_SIZE, contract.ENV_LOCAL_RANK, contract.ENV_LOCAL_WORLD_SIZE)
    assert [told[name] for name in names] == ["3", "4", "1", "2"]
    assert told["TMPDIR"] == "/tmp/all"
    assert not [name for name in told if name.startswith("TRAINJOB_MPI")]
    assert one_rank.PR_SET_PDEATHSIG == 1


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (given(rank=0, local=0, each=1, size=1, worker=0), "leave out mpirun's -n"),
        (given(rank=1, local=0, each=2, size=4, worker=1), "--map-by slot"),
        (given(rank=2, local=0, each=1, size=3, worker=1), "leave out mpirun's -n"),
    ],
)
def test_ranks_that_lie_as_no_job_has_them_are_refused(place: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        one_rank.told(place)


@pytest.mark.parametrize("host", ["localhost", "worker-0", "worker-3", "worker-x", "10.0.0.2", "worker-1.svc"])
def test_a_host_that_is_none_of_the_jobs_workers_is_told(host: str) -> None:
    with pytest.raises(ValueError, match="leave out its --host"):
        places.index_of(host, 3)


class Stage:
    """A handover for two workers, and those who call it."""

    def __init__(self, folder: Path) -> None:
        self.handover = Handover(KEY, attempt=2, workers=2, port=7)
        self.door = str(folder / "door")
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Stage]:
        async with await asyncio.start_server(self.handover.worker, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            async with await asyncio.start_unix_server(self.handover.shell, self.door):
                yield self

    def call(self, key: str = KEY, attempt: int = 2, index: int = 1) -> dict[str, object]:
        """As `daemon_side` does, which ends its command with 3; what it is handed. Raises OSError, ValueError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            reader, writer = line.makefile("rb"), line.makefile("wb")
            proof.introduce(reader, writer, key, attempt, index)
            order = proof.decoded(reader.readline())
            writer.write(proof.encoded({"code": 3}))
            writer.flush()
            return order

    def replay(self) -> bytes:
        """A stranger, who has heard a hello and says it again with a proof of his own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            hello = handshake.hello(handshake.MEMBER, 2, 1)
            line.sendall(proof.encoded(hello.to_message()) + proof.encoded({"op": handshake.PROOF, "proof": "0" * 64}))
            with line.makefile("rb") as answers:
                answers.readline()
                return answers.readline()

    async def shell(self, host: str) -> int:
        """The exit code of what mpirun takes for ssh."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, remote_shell.__file__, host, "orted", "-mca a", env={contract.ENV_MPI_SOCKET: self.door}
        )
        return await process.wait()


def test_the_right_worker_alone_is_handed_what_mpirun_starts(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(tmp_path).open() as stage:
            started = asyncio.ensure_future(stage.shell("worker-1"))
            assert await asyncio.to_thread(stage.replay) == b""
            for wrong in ({"key": proof.key_of("another")}, {"attempt": 1}, {"index": 0}, {"index": 5}):
                with pytest.raises((OSError, ValueError)):
                    await asyncio.to_thread(stage.call, **wrong)
            order = await asyncio.to_thread(stage.call)
            assert order == {"command": "orted -mca a", "port": 7}
            assert await started == 3, "mpirun hears how it ended there"
            assert await stage.handover.over() == []

    asyncio.run(story())


def test_who_was_handed_nothing_is_told_that_it_is_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(tmp_path).open() as stage:
            waits = asyncio.ensure_future(asyncio.to_thread(stage.call))
            await stage.handover.came[1].wait()
            assert await stage.handover.over() == [1]
            assert "command" not in await waits

    asyncio.run(story())


def test_a_worker_that_breaks_and_a_host_that_is_none_fail_mpiruns_start(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage(tmp_path).open() as stage:
            assert await stage.shell("elsewhere") == 255
            started = asyncio.ensure_future(stage.shell("worker-1"))

            def breaks() -> None:
                with socket.create_connection(("127.0.0.1", stage.port), timeout=60) as line:
                    reader, writer = line.makefile("rb"), line.makefile("wb")
                    proof.introduce(reader, writer, KEY, 2, 1)
                    json.loads(reader.readline())

            await asyncio.to_thread(breaks)
            assert await started == 255

    asyncio.run(story())
