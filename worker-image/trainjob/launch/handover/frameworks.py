"""What a trainer sets up in each rank before its function, by framework, and takes down after it.

A rank of a trainer calls it (`launch.worker`), or the caller's own process that is one (`in_process`). A framework is
imported by nobody whose trainer does not ask for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from trainjob.launch.errors import LaunchError
from trainjob.launch.handover.payload import JAX, TENSORFLOW, TORCH, XGBOOST, Header

_open = contextlib.ExitStack()
"""What `stop` closes."""
_MEETS = "TORCH_DIST_INIT_BARRIER"
"""torch's own: a new group waits in its store until all ranks have it."""


def start(header: Header) -> None:
    """What the header's framework needs, ready for use. Raises what the framework raises."""
    if header.framework == TORCH:
        _start_process_group(header)
    elif header.framework == JAX:
        _start_jax(header)
    elif header.framework == TENSORFLOW:
        from trainjob.integrations import tensorflow

        tensorflow.set_tf_config()
    elif header.framework == XGBOOST:
        from trainjob.integrations import xgboost

        _open.enter_context(xgboost.communicator())


def stop() -> None:
    """Only after success: a rank that failed must not wait for its peers here."""
    leave()
    if has_process_group():
        sys.modules["torch.distributed"].destroy_process_group()


def leave() -> None:
    """What must be over before this rank says that it ends: JAX and XGBoost wait for all ranks there, as long as the
    slowest one takes.
    """
    _open.close()


def has_process_group() -> bool:
    """Whether torch has one, ours or the function's own."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_initialized())


def _start_jax(header: Header) -> None:
    from trainjob.integrations import jax

    jax.initialize()
    from jax import distributed, local_devices

    if header.use_gpu and not any(device.platform == "gpu" for device in local_devices()):
        raise LaunchError(
            "ScalingConfig.use_gpu=True, but JAX sees no GPU in this rank: is this a CPU build of jaxlib, or is "
            "CUDA_VISIBLE_DEVICES empty?"
        )
    _open.callback(distributed.shutdown)


def _start_process_group(header: Header) -> None:
    """torch.distributed. Without a backend of the user's choice: nccl for GPU jobs, else gloo."""
    import torch

    from trainjob.torch.group import init_process_group

    if header.use_gpu and not torch.cuda.is_available():
        raise LaunchError(
            "ScalingConfig.use_gpu=True, but torch sees no GPU in this rank: is this a CPU build of torch, or is "
            "CUDA_VISIBLE_DEVICES empty?"
        )
    if header.use_gpu:
        # Device selection without `prepare_model`, as Ray Train offers it to accelerate.
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", f"cuda:{os.environ.get('LOCAL_RANK', '0')}")
    with _all_have_met():
        init_process_group(header.backend or ("nccl" if header.use_gpu else "gloo"), header.timeout_s)


@contextlib.contextmanager
def _all_have_met() -> Iterator[None]:
    """torch lets a rank go on while another still connects to it: a function that returned at once would break that
    one's start.
    """
    before = os.environ.get(_MEETS)
    os.environ[_MEETS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_MEETS, None)
        if before is not None:
            os.environ[_MEETS] = before
