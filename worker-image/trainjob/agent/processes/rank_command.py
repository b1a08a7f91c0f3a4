"""The user's command line and environment as one rank gets them, and whether they can run at all.

Called by `attempt` before it forks. Looks at the file system, starts nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

import trainjob_api
from trainjob.agent.processes import accelerators, cores
from trainjob_api import command, contract

SESSION_MODULE = "trainjob.session.rank"
AGENT_ONLY = (
    contract.ENV_PARENT_FD,
    contract.ENV_TOKEN_FILE,
    contract.ENV_COORDINATOR,
    contract.ENV_AGENT_SPEC,
    contract.ENV_CODE,
    contract.ENV_SHARED_TMP,
    contract.ENV_MACHINE_RANKS,
    contract.ENV_KEPT_PARENT,
)
"""What ranks have no business with."""


class CannotRun(Exception):
    """The command cannot run at all; the text names what is missing and where it was looked for."""


class RankPlace(NamedTuple):
    """One rank's numbers in the attempt."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    workers: int
    processes: int
    """What a launcher is asked to start here."""


class AttemptPlace(NamedTuple):
    """What all ranks of the attempt on this agent share."""

    attempt: int
    run: int
    storage: Optional[str]
    master_addr: str
    master_port: int
    socket_path: str
    stack_folder: str
    tmp: str
    tmp_mark: str
    return_file: str = ""
    hosted: bool = False
    """The store is served beside the ranks."""
    learn: str = ""
    """Where the first rank here is to list what its script imports."""
    mpi_key: str = ""
    """Where mpirun is the command."""
    recycled: str = ""
    """The folder of what may be written over; empty: nothing is."""


def is_plain(words: Sequence[str]) -> bool:
    """Whether there is one process per rank: a plain python script or module. Otherwise once per pod, as it stands."""
    return command.parse_python(words) is not None


def argv(words: Sequence[str], index: int = 0) -> List[str]:
    """What is executed on the worker of this index. Raises CannotRun."""
    program = _which(words[0])
    if program is None:
        raise CannotRun(
            f"Program {words[0]!r} is not there (cwd {os.getcwd()}, PATH {os.environ.get('PATH', '')}). Is it "
            "installed in this image, and spelled right?"
        )
    parsed = command.parse_python(words)
    if parsed is None:
        return [
            sys.executable,
            "-S",
            "-E",
            os.path.join(os.path.dirname(__file__), "tether.py"),
            str(os.getpid()),
            *(_mpi(words, index) if command.is_mpi(words) else words),
        ]
    if not parsed.is_module and not os.path.exists(parsed.target):
        raise CannotRun(
            f"Script {parsed.target!r} is not there (cwd {os.getcwd()}, full path {os.path.abspath(parsed.target)}). "
            "Is the path right inside this worker?"
        )
    target = ["-m", parsed.target] if parsed.is_module else [parsed.target]
    return [program, *parsed.flags, "-m", SESSION_MODULE, "--", *target, *parsed.arguments]


def _mpi(words: Sequence[str], index: int) -> List[str]:
    """mpirun runs on the first worker, and starts its daemons on the others."""
    side = f"trainjob.agent.mpi.{'daemon_side' if index else 'mpirun_side'}"
    # Without the folder where the command runs, whose modules would come before Python's own.
    boot = f"import sys; sys.path[:0] = {_roots()!r}; from {side} import main; main()"
    return [sys.executable, "-I", "-c", boot, *words]


def environment(
    base: Mapping[str, str], words: Sequence[str], place: RankPlace, shared: AttemptPlace
) -> Dict[str, str]:
    """A rank's environment: the agent's own, plus its place."""
    env = environment_of_all(base, words, place.local_world_size)
    env.update(of_place(place, shared))
    if not is_plain(words):
        for name in contract.JAX_PLACE:
            del env[name]  # of each rank that the launcher starts
        env.update(_launcher_names(place, shared))
    if command.is_mpi(words):
        env[contract.ENV_MPI_KEY] = shared.mpi_key
    return env


def of_place(place: RankPlace, shared: AttemptPlace) -> Dict[str, str]:
    """What of it is another for each rank or attempt. No library reads it while it is imported."""
    host = f"[{shared.master_addr}]" if ":" in shared.master_addr else shared.master_addr
    env = {
        contract.ENV_RANK: str(place.rank),
        contract.ENV_LOCAL_RANK: str(place.local_rank),
        contract.ENV_WORLD_SIZE: str(place.world_size),
        contract.ENV_LOCAL_WORLD_SIZE: str(place.local_world_size),
        contract.ENV_NODE_RANK: str(place.node_rank),
        contract.ENV_MASTER_ADDR: shared.master_addr,
        contract.ENV_MASTER_PORT: str(shared.master_port),
        contract.ENV_JAX_COORDINATOR_ADDRESS: f"{host}:{shared.master_port}",
        contract.ENV_JAX_NUM_PROCESSES: str(place.world_size),
        contract.ENV_JAX_PROCESS_ID: str(place.rank),
        contract.ENV_ATTEMPT: str(shared.attempt),
        contract.ENV_RUN: str(shared.run),
        contract.ENV_STORAGE: shared.storage or "",
        contract.ENV_RETURN_FILE: shared.return_file,
        contract.ENV_AGENT_SOCKET: shared.socket_path,
        contract.ENV_STACK_FOLDER: shared.stack_folder,
        contract.ENV_AGENT_PID: str(os.getpid()),
        "TMPDIR": shared.tmp,
        contract.ENV_TMP_MARK: shared.tmp_mark,
        contract.ENV_LEARN: shared.learn,
        contract.ENV_RECYCLED: shared.recycled,
    }
    # Else rank 0 serves it, as a script that is started by hand has it.
    return {**env, contract.ENV_AGENT_STORE: str(True)} if shared.hosted else env


PLACE = frozenset(of_place(RankPlace(0, 0, 0, 0, 0, 0, 0), AttemptPlace(0, 0, None, "", 0, "", "", "", "", "", True)))
"""The names of these."""


def environment_of_all(base: Mapping[str, str], words: Sequence[str], local_world_size: int) -> Dict[str, str]:
    """What of it every rank here has, in every attempt."""
    env = {name: value for name, value in base.items() if name not in AGENT_ONLY}
    # Lines should appear when they are printed, not when a buffer is full.
    env.setdefault("PYTHONUNBUFFERED", "1")
    if local_world_size > 1:
        # Without it each rank would start a thread per core; torchrun's answer is 1, ours is a fair share.
        env.setdefault("OMP_NUM_THREADS", str(cores.share(local_world_size)))
    if accelerators.surely_none(accelerators.names(), base):
        # Accelerate, and the Trainers that stand on it, else take a machine without one for a job of a single rank.
        env.setdefault("ACCELERATE_USE_CPU", "true")
    if is_plain(words):
        _reach_session(env, words[0])
    return env


def _launcher_names(place: RankPlace, shared: AttemptPlace) -> Dict[str, str]:
    """What torchrun reads; a restart is the operator's affair, never the launcher's own."""
    return {
        "PET_NNODES": str(place.workers),
        "PET_NPROC_PER_NODE": str(place.processes),
        "PET_NODE_RANK": str(place.node_rank),
        "PET_MASTER_ADDR": shared.master_addr,
        "PET_MASTER_PORT": str(shared.master_port),
        # For `--rdzv-backend=c10d`; the static default reads the same address.
        "PET_RDZV_ENDPOINT": f"{shared.master_addr}:{shared.master_port}",
        "PET_MAX_RESTARTS": "0",
    }


def _reach_session(env: Dict[str, str], interpreter: str) -> None:
    """Another Python than the agent's own finds the library through PYTHONPATH."""
    if os.path.dirname(os.path.abspath(_which(interpreter) or interpreter)) == os.path.dirname(
        os.path.abspath(sys.executable)
    ):
        return
    env["PYTHONPATH"] = os.pathsep.join([p for p in (env.get("PYTHONPATH", ""),) if p] + _roots())


def _roots() -> List[str]:
    """The folders from which the library is imported."""
    roots = []
    for found in (
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        os.path.dirname(os.path.abspath(trainjob_api.__file__ or "")),
    ):
        root = os.path.dirname(found)
        if root not in roots:
            roots.append(root)
    return roots


def _which(program: str) -> Optional[str]:
    """As a shell finds it; the path is kept relative to a name without a slash only."""
    if "/" in program:
        return program if _executable(program) else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", program)
        if _executable(path):
            return path
    return None


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
