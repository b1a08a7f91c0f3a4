"""The process group of a rank: brought up as the job's spec says.

`prepare_model` calls it for scripts that did not, `trainjob.launch.worker` before a TorchTrainer's function starts.
Rank, world size and address come from the environment that the agent gave; backend and time-out from spec.rendezvous.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Optional

from trainjob.session import milestones
from trainjob.session.arguments import told
from trainjob.session.errors import TrainJobError
from trainjob_api import contract

_NEEDED = (contract.ENV_RANK, contract.ENV_WORLD_SIZE, contract.ENV_MASTER_ADDR, contract.ENV_MASTER_PORT)
DEFAULT_TIMEOUT_S = 1800.0
"""torch's own, and that of spec.rendezvous.timeoutSeconds."""


@told
def init_process_group(backend: Optional[str] = None, timeout_s: Optional[float] = None) -> None:
    """Bring torch.distributed up, unless it is: with one rank too, so that collectives work at every size.

    `backend`: gloo or nccl; None: spec.rendezvous.backend, whose auto is nccl where the trainer has GPUs, else gloo.
    `timeout_s` is that of each collective; None: spec.rendezvous.timeoutSeconds. With nccl the rank's GPU becomes the
    current device. Raises TrainJobError where the environment names no rank, and torch's DistError or ValueError when
    the ranks do not find each other.

    ```python
    trainjob.init_process_group()  # prepare_model() does it too
    mean = loss.detach() / torch.distributed.get_world_size()
    torch.distributed.all_reduce(mean)
    ```
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise TrainJobError(
            f"No process group can be made: {', '.join(missing)} not set in the environment. Start the script with "
            "`tj run script.py --workers 2`, or with torchrun."
        )
    chosen = backend or os.environ.get(contract.ENV_BACKEND) or ("nccl" if torch.cuda.is_available() else "gloo")
    if "nccl" in chosen:
        from trainjob.torch.device import get_device

        torch.cuda.set_device(get_device())
    seconds = (
        timeout_s
        if timeout_s is not None
        else float(os.environ.get(contract.ENV_RENDEZVOUS_TIMEOUT_S) or DEFAULT_TIMEOUT_S)
    )
    dist.init_process_group(chosen, init_method="env://", timeout=timedelta(seconds=seconds))
    milestones.look()
