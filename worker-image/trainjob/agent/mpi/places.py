"""What mpirun is told of the workers, and how it is told: environment variables and a host file. Pure.

The parameters are Open MPI's (`ompi_info --all`); each can be set by an environment variable.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, Mapping

from trainjob_api import contract

_HERE = os.path.dirname(os.path.abspath(__file__))
_SELF = "localhost"
"""Open MPI's name for the machine that mpirun runs on."""
_NAME = "worker-"
_PARAMETER = "OMPI_MCA_"


class UnusablePathError(ValueError):
    """Open MPI would take this path apart."""


def hosts(workers: int, each: int) -> str:
    """A host file: one line a worker, `each` ranks on it."""
    names = [_SELF, *(f"{_NAME}{index}" for index in range(1, workers))]
    return "".join(f"{name} slots={each}\n" for name in names)


def index_of(host: str, workers: int) -> int:
    """The worker of a name in the host file. Raises ValueError."""
    number = host[len(_NAME) :] if host.startswith(_NAME) else ""
    if not number.isdigit() or not 0 < int(number) < workers:
        raise ValueError(f"mpirun wants to start on {host!r}, which is no worker of this job: leave out its --host")
    return int(number)


def environment(base: Mapping[str, str], host_file: str, is_loopback: bool, workers: int) -> Dict[str, str]:
    """Of mpirun, for so many workers; what of it are mere defaults, the job's own environment overrules. Raises
    UnusablePathError.
    """
    ours = {
        "plm_rsh_agent": _script("remote_shell.py"),
        # Each daemon is started from worker 0, however many there are, and whoever starts it sees how it ended.
        "plm_rsh_no_tree_spawn": "1",
        "orte_leave_session_attached": "1",
        "orte_default_hostfile": host_file,
        "orte_fork_agent": _script("one_rank.py"),
        # Names that only we know are looked up nowhere.
        "orte_do_not_resolve": "1",
        "orte_keep_fqdn_hostnames": "1",
    }
    # Two jobs on one machine would both be bound to its first cores.
    wished = {"hwloc_base_binding_policy": "none"}
    if is_loopback:
        # Not used where nobody says so. Ranks of several workers share the cores: who waits lets others go on.
        wished.update(oob_tcp_if_include="lo", btl_tcp_if_include="lo", mpi_yield_when_idle="1")
    if is_loopback and workers > 1:
        # It names shared memory by the machine and a rank's place on it: ranks of two workers would write into the
        # same one.
        wished.update(btl="^vader")
    defaults = {f"{_PARAMETER}{name}": value for name, value in wished.items()}
    if os.geteuid() == 0:
        defaults.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return {**defaults, **base, **{f"{_PARAMETER}{name}": value for name, value in ours.items()}}


def is_known(version: str) -> bool:
    """By what `mpirun --version` says: Open MPI 5 has no way to start a rank by a program of ours, and others none of
    these parameters.
    """
    return re.search(r"\((Open MPI|OpenRTE)\) 4\.", version) is not None


def _script(name: str) -> str:
    path = f"{sys.executable} -S -E {os.path.join(_HERE, name)}"
    if len(path.split()) != 4 or ":" in path:
        raise UnusablePathError(
            f"Open MPI cannot use a path with spaces or colons: {sys.executable}, {_HERE}. Install Python and TrainJob "
            "below another folder."
        )
    return path


def own_folder(base: Mapping[str, str], folder: str, port: int) -> Dict[str, str]:
    """Of mpirun and of each daemon: several on one machine would stumble over each other's files. `port`: the ranks'
    MASTER_PORT, as theirs is where the workers meet.
    """
    told = {name: value for name, value in base.items() if name != contract.ENV_MPI_KEY}
    return {
        **told,
        contract.ENV_MPI_TMPDIR: base.get("TMPDIR", ""),
        "TMPDIR": folder,
        contract.ENV_MASTER_PORT: str(port),
    }
