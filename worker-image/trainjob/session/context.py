"""Who this rank is: the environment that the agent (or a launcher such as torchrun) gave it, read once.

Called by `trainjob.get_context()` and by every other session module. Decides nothing and opens nothing.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from trainjob.session import filesystems
from trainjob.session.errors import NotInWorkerError, TrainJobError
from trainjob_api import contract

HOW_TO_RUN = (
    "Run the script with `tj run train.py --workers 2`, or the function with `TorchTrainer(train_func, "
    "scaling_config=ScalingConfig(num_workers=2)).fit()`. To train in this very process: `trainjob.init()` before the "
    f"first call, or {contract.ENV_IN_PROCESS}=1 in the environment."
)


class StorageFolder(str):
    """The job's own folder on storage, with the names of Ray Train's storage context."""

    def build_checkpoint_path_from_name(self, checkpoint_name: str) -> str:
        """A folder for what `checkpoint_upload_fn` writes, in a place that is not the library's."""
        return f"{self}/uploads/{checkpoint_name}"

    @property
    def experiment_fs_path(self) -> str:
        """The folder as text."""
        return str(self)

    @property
    def storage_filesystem(self) -> Any:
        """A pyarrow filesystem that reads it. Raises ImportError without pyarrow."""
        return filesystems.of(self)


@dataclass(frozen=True)
class TrainContext:
    """This rank's place in the job. The getters are Ray Train's names; all values are fixed for the attempt.

    ```python
    context = trainjob.get_context()
    mine = list(range(100))[context.get_world_rank() :: context.get_world_size()]
    ```
    """

    rank: int
    """0 .. world size - 1; 0 is the one whose metrics are the job's."""
    world_size: int
    """Ranks of the job in this attempt."""
    local_rank: int
    """This rank within its worker (pod), from 0: the number of its first GPU where the ranks share the pod's. Of a job
    on this machine without GPUs: within the machine.
    """
    local_world_size: int
    """Ranks in this worker (pod); of a job on this machine without GPUs: on the machine."""
    node_rank: int
    """Index of this rank's worker among the attempt's members, from 0; of a job on this machine without GPUs: 0."""
    job: str
    """The TrainJob's name."""
    namespace: str
    """The TrainJob's namespace; `local` on one machine."""
    run: Optional[int]
    """Number of this run of the job's name, from 1; None under a launcher that does not pass it on."""
    attempt: int
    """Number of this attempt, from 1; raised by each start, restart, resize and resume."""
    storage: Optional[str]
    """The job's own folder on storage, or None when checkpoints are only staged."""
    agent_socket: str
    """Path of the socket on which the worker's agent listens."""

    def get_world_size(self) -> int:
        """Ranks of the job in this attempt."""
        return self.world_size

    def get_world_rank(self) -> int:
        """This rank, 0 .. world size - 1."""
        return self.rank

    def get_local_rank(self) -> int:
        """This rank within its worker (pod)."""
        return self.local_rank

    def get_local_world_size(self) -> int:
        """Ranks in this worker (pod)."""
        return self.local_world_size

    def get_node_rank(self) -> int:
        """Index of this rank's worker among the attempt's members."""
        return self.node_rank

    def get_job_name(self) -> str:
        """The TrainJob's name."""
        return self.job

    def get_attempt(self) -> int:
        """Number of this attempt, from 1; raised by each start, restart, resize and resume."""
        return self.attempt

    def get_run(self) -> Optional[int]:
        """Number of this run of the job's name (1 without storage); None under a launcher that does not pass it on."""
        return self.run

    def get_storage(self) -> Optional[StorageFolder]:
        """The job's own folder on storage, a str; or None when checkpoints are only staged."""
        return None if self.storage is None else StorageFolder(self.storage)

    def get_experiment_name(self) -> str:
        """Ray's name for the run's name: as `RunConfig` has it, else the job's."""
        from trainjob import session

        return session.experiment_name or self.job

    def get_trial_name(self) -> str:
        """Ray's name for the job's name: a TrainJob is one trial."""
        return self.job

    def get_trial_id(self) -> str:
        """Ray's id of a trial: namespace, name and run."""
        return f"{self.namespace}-{self.job}-{self.run or 1}"

    def get_trial_dir(self) -> str:
        """Ray's folder of a trial: the job's folder on storage, else the working folder."""
        return self.storage or os.getcwd()


_A_CHILD = (
    "Call report(), log(), barrier() and get_checkpoint() in the rank's own process, not in its child "
    "processes. If the command is a launcher of yours that starts the training: name the training script "
    "itself (`tj run train.py`), have the launcher become it (os.execv(sys.executable, [sys.executable, "
    "'train.py'])), or run it inside the launcher (runpy.run_path('train.py', run_name='__main__'))."
)
_IMPORTED_AGAIN = (
    "Its start method (spawn or forkserver) imports the script again: put what starts the training below "
    "`if __name__ == '__main__':`."
)


def _is_spawning() -> bool:
    """Whether this process of multiprocessing is still importing its parent's script."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(getattr(process.current_process(), "_inheriting", False))


def read(environ: Mapping[str, str]) -> TrainContext:
    """The context in `environ`. Raises NotInWorkerError when no agent started this process."""
    socket_path = environ.get(contract.ENV_AGENT_SOCKET)
    if not socket_path:
        local_rank = environ.get(contract.ENV_LOCAL_RANK, "0")
        if local_rank != "0":  # a launcher such as torchrun started several: it is said once a machine
            raise NotInWorkerError(
                f"This process (local rank {local_rank}) is no worker of a TrainJob: local rank 0 says what to do."
            )
        raise NotInWorkerError(
            f"This process is no worker of a TrainJob: no agent started it ({contract.ENV_AGENT_SOCKET} is not set). "
            f"{HOW_TO_RUN}"
        )
    owner = environ.get(contract.ENV_RANK_PID)
    if owner and owner != str(os.getpid()):
        whose = f"rank {environ.get(contract.ENV_RANK, '?')} (pid {owner})"
        raise NotInWorkerError(
            f"This process (pid {os.getpid()}) was started by {whose} and is no rank itself. "
            + (_IMPORTED_AGAIN if _is_spawning() else _A_CHILD)
        )
    world_size = _number(environ, contract.ENV_WORLD_SIZE, 1)
    return TrainContext(
        rank=_number(environ, contract.ENV_RANK, 0),
        world_size=world_size,
        local_rank=_number(environ, contract.ENV_LOCAL_RANK, 0),
        local_world_size=_number(environ, contract.ENV_LOCAL_WORLD_SIZE, 1),
        node_rank=_number(environ, contract.ENV_NODE_RANK, _number(environ, "GROUP_RANK", 0)),
        job=environ.get(contract.ENV_JOB, ""),
        namespace=environ.get(contract.ENV_NAMESPACE, "default"),
        run=_number(environ, contract.ENV_RUN, 0) or None,
        attempt=_number(environ, contract.ENV_ATTEMPT, 1),
        storage=environ.get(contract.ENV_STORAGE) or None,
        agent_socket=socket_path,
    )


def _number(environ: Mapping[str, str], name: str, absent: int) -> int:
    text = environ.get(name)
    if not text:
        return absent
    try:
        return int(text)
    except ValueError:
        raise TrainJobError(
            f"The environment variable {name}={text!r} is no number. The agent sets it for each rank: do not "
            "overwrite it."
        ) from None
