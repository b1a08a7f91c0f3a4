"""DeepSpeed's engine over the ranks of a TrainJob: its checkpoints, of all ranks, are the job's.

```python
import trainjob.deepspeed

engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config="config.json")
state = trainjob.deepspeed.load_checkpoint(engine)
...
trainjob.deepspeed.report(engine, {"loss": loss}, step=step)
```

Import it before `deepspeed.initialize`: it keeps DeepSpeed from waiting for ever for a build that a killed rank has
left behind.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, Mapping, Optional

from trainjob.integrations.needed import missing
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import TrainJobError
from trainjob_api import contract

_EXTENSIONS = "TORCH_EXTENSIONS_DIR"
_SHARED_MEMORY = "deepspeed_shm_comm"
_STATE, _STEP = "trainjob", "step"
_SIZE_FILE = "world-size"
_UNIVERSAL_FILE = "latest_universal"

if os.environ.get("ACCELERATE_USE_CPU") == "true":  # the agent says so where a machine has nothing else
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

try:
    import deepspeed
    from deepspeed.git_version_info import installed_ops
    from deepspeed.ops.op_builder.builder import OpBuilder
except ImportError as error:
    raise missing("deepspeed", "deepspeed>=0.19", error) from error

__all__ = ["load_checkpoint", "report"]


def _keeping_builds_apart(build: Callable[..., Any]) -> Callable[..., Any]:
    """DeepSpeed's operators are compiled when they are first used. A rank that is killed meanwhile leaves a lock file,
    at which all later ones would wait: each attempt builds in a folder of its own, unless the job names one.
    """

    @functools.wraps(build)
    def built(*arguments: Any, **named: Any) -> Any:
        attempt = os.environ.get(contract.ENV_ATTEMPT)
        if attempt is not None and not os.environ.get(_EXTENSIONS):
            folder = f"torch-extensions-{os.environ.get(contract.ENV_RUN, '')}-{attempt}"
            os.environ[_EXTENSIONS] = os.path.join(tempfile.gettempdir(), folder)
        return build(*arguments, **named)

    return built


# When it builds, and not now: ranks may be forked from a process that has imported this.
OpBuilder.jit_load = _keeping_builds_apart(OpBuilder.jit_load)
if deepspeed.accelerator.get_accelerator().device_name() == "cpu" and not installed_ops.get(_SHARED_MEMORY):
    # DeepSpeed would compile it before anything else, for minutes. Without it ranks of one machine use gloo.
    deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False


def report(
    engine: Any, metrics: Mapping[str, Any], *, step: int, client_state: Optional[Mapping[str, Any]] = None
) -> None:
    """`trainjob.report()` with a checkpoint of the engine: weights, optimizer and scheduler, of each rank what it has.
    `client_state`: what you want back from `load_checkpoint`; by its names, what `torch.save` can store.

    All ranks call it behind the same step. Raises as `trainjob.report()` does.
    """
    context = calls.get_context()
    with tempfile.TemporaryDirectory() as folder:
        saved = {_STATE: dict(client_state or {}), _STEP: step}
        engine.save_checkpoint(folder, tag=f"step-{step}", client_state=saved)
        if context.rank == 0:
            with open(os.path.join(folder, _SIZE_FILE), "w", encoding="ascii") as file:
                file.write(str(context.world_size))
        calls.report(dict(metrics), checkpoint=Checkpoint.from_directory(folder), step=step)


def load_checkpoint(engine: Any) -> Optional[Dict[str, Any]]:
    """Brings the engine to where the job's newest checkpoint was, on all ranks. Returns the `client_state` that was
    reported with it, and under `step` its step; None at a first start.

    Where another number of ranks has saved it, it is converted first (DeepSpeed's universal checkpoints), once a
    worker. Raises TrainJobError for a checkpoint that `report` has not made.
    """
    checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        if not os.path.exists(os.path.join(folder, _SIZE_FILE)):
            raise TrainJobError(
                "The newest checkpoint was not reported by trainjob.deepspeed.report(). Load it yourself, or start "
                "over with --fresh."
            )
        with open(os.path.join(folder, _SIZE_FILE), encoding="ascii") as file:
            size = int(file.read())
        if size == calls.get_context().world_size:
            _, saved = engine.load_checkpoint(folder)
        else:
            saved = _load_universal(engine, folder)
    return {_STEP: saved[_STEP], **saved[_STATE]}


def _load_universal(engine: Any, folder: str) -> Dict[str, Any]:
    context = calls.get_context()
    with open(os.path.join(folder, "latest"), encoding="ascii") as file:
        tag = file.read().strip()
    # All ranks of a worker find it: its name has nothing of a rank's in it.
    made = os.path.join(tempfile.gettempdir(), f"deepspeed-universal-{context.run}-{context.attempt}")
    if context.local_rank == 0:
        shutil.rmtree(made, ignore_errors=True)
        _convert(os.path.join(folder, tag), os.path.join(made, tag))
        with open(os.path.join(made, _UNIVERSAL_FILE), "w", encoding="ascii") as file:
            file.write(tag)
    calls.barrier()
    engine._config.load_universal_checkpoint = True
    try:
        _, saved = engine.load_checkpoint(made)
    finally:
        engine._config.load_universal_checkpoint = False
    calls.barrier()
    if context.local_rank == 0:
        shutil.rmtree(made, ignore_errors=True)
    return dict(saved)


def _convert(source: str, target: str) -> None:
    """In a process of its own, which has several: forks of a rank that computes would not live long."""
    options = ["--input_folder", source, "--output_folder", target, "--inject_missing_state"]
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TrainJobError(
            "The newest checkpoint is of another number of ranks, and DeepSpeed cannot convert it:\n"
            f"{done.stdout[-2000:]}"
        )
