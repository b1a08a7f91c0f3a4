"""TrainJob: distributed PyTorch training that starts fast, shows what it does, and comes back by itself.

What user code imports. Every name is loaded when it is first used (PEP 562), so that `import trainjob` costs nothing
and pulls in neither torch nor pydantic; the agent, the rank's boot and the command line rely on that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    from trainjob.launch import (
        CheckpointConfig,
        ClusterRun,
        DataParallelTrainer,
        FailureConfig,
        JaxTrainer,
        Kubernetes,
        LightGBMTrainer,
        LightningTrainer,
        Result,
        RunConfig,
        ScalingConfig,
        TensorflowTrainer,
        TorchConfig,
        TorchTrainer,
        TrainingFailedError,
        TransformersTrainer,
        UserCallback,
        ValidationConfig,
        ValidationTaskConfig,
        XGBoostTrainer,
        init,
    )
    from trainjob.session.calls import (
        barrier,
        broadcast_from_rank_zero,
        checkpoint_requested,
        get_checkpoint,
        get_context,
        get_preemption_info,
        log,
        report,
    )
    from trainjob.session.checkpoint import Checkpoint
    from trainjob.session.context import TrainContext
    from trainjob.session.errors import (
        AgentLostError,
        BarrierMismatchError,
        BarrierTimeoutError,
        CheckpointDamagedError,
        CheckpointError,
        CollectiveError,
        NotInWorkerError,
        RankGoneError,
        StagingFullError,
        StorageError,
        TrainJobError,
    )
    from trainjob.session.offering import CheckpointUploadMode
    from trainjob.session.preemption import PreemptionInfo
    from trainjob.session.reported import ReportedCheckpoint, get_all_reported_checkpoints
    from trainjob.torch import (
        enable_reproducibility,
        get_device,
        get_devices,
        init_process_group,
        prepare_data_loader,
        prepare_model,
    )

__version__ = "0.1.0"

__all__ = [
    "AgentLostError",
    "BarrierMismatchError",
    "BarrierTimeoutError",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointUploadMode",
    "ClusterRun",
    "CollectiveError",
    "DataParallelTrainer",
    "FailureConfig",
    "JaxTrainer",
    "Kubernetes",
    "LightGBMTrainer",
    "LightningTrainer",
    "NotInWorkerError",
    "PreemptionInfo",
    "RankGoneError",
    "ReportedCheckpoint",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "StagingFullError",
    "StorageError",
    "TensorflowTrainer",
    "TorchConfig",
    "TorchTrainer",
    "TrainContext",
    "TrainJobError",
    "TrainingFailedError",
    "TransformersTrainer",
    "UserCallback",
    "ValidationConfig",
    "ValidationTaskConfig",
    "XGBoostTrainer",
    "barrier",
    "broadcast_from_rank_zero",
    "checkpoint_requested",
    "enable_reproducibility",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_device",
    "get_devices",
    "get_preemption_info",
    "init",
    "init_process_group",
    "log",
    "prepare_data_loader",
    "prepare_model",
    "report",
]

_MODULES: Dict[str, str] = {
    "trainjob.session.calls": "barrier broadcast_from_rank_zero checkpoint_requested get_checkpoint get_context "
    "get_preemption_info log report",
    "trainjob.session.checkpoint": "Checkpoint",
    "trainjob.session.preemption": "PreemptionInfo",
    "trainjob.session.offering": "CheckpointUploadMode",
    "trainjob.session.reported": "ReportedCheckpoint get_all_reported_checkpoints",
    "trainjob.session.context": "TrainContext",
    "trainjob.session.errors": (
        "AgentLostError BarrierMismatchError BarrierTimeoutError CheckpointDamagedError CheckpointError "
        "CollectiveError NotInWorkerError "
        "RankGoneError StagingFullError StorageError TrainJobError"
    ),
    "trainjob.torch": "enable_reproducibility get_device get_devices init_process_group prepare_data_loader "
    "prepare_model",
    "trainjob.launch": (
        "CheckpointConfig ClusterRun DataParallelTrainer FailureConfig JaxTrainer Kubernetes LightGBMTrainer "
        "LightningTrainer Result RunConfig ScalingConfig TensorflowTrainer TorchConfig TorchTrainer "
        "TrainingFailedError TransformersTrainer UserCallback ValidationConfig ValidationTaskConfig XGBoostTrainer init"
    ),
}
_HOME: Dict[str, str] = {name: module for module, names in _MODULES.items() for name in names.split()}
_SUBMODULES = frozenset(
    (
        *("collective", "compat", "deepspeed", "errors", "huggingface", "jax", "keras", "lightgbm", "lightning"),
        *("orbax", "tensorflow", "torch", "trackers", "xgboost"),
    )
)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    home = _HOME.get(name)
    if home is None:
        unknown = import_module("trainjob.session.unknown_name")
        raise unknown.error(__name__, name, [*__all__, *_SUBMODULES])
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> List[str]:
    return sorted({*__all__, *_SUBMODULES, *(name for name in globals() if name.startswith("__"))})
