"""`ray.train` by TrainJob's own names."""

from __future__ import annotations

from trainjob.compat.absent import names

_OURS = (
    "Checkpoint CheckpointConfig CheckpointUploadMode FailureConfig Result RunConfig ScalingConfig TrainContext "
    "TrainingFailedError UserCallback get_all_reported_checkpoints get_checkpoint get_context report"
)
_HOMES = dict.fromkeys(_OURS.split(), "trainjob")
_HOMES["torch"] = f"{__name__}.torch"
_HOMES["collective"] = f"{__name__}.collective"
_TORCH = "the libraries run inside ray.train.torch.TorchTrainer's function as they are; report with ray.train.report"
_DATA = "read data with a torch DataLoader and ray.train.torch.prepare_data_loader"
_HINTS = {
    "get_dataset_shard": _DATA,
    "DataConfig": _DATA,
    "SyncConfig": "give RunConfig(storage_path=...); uploads are asynchronous by themselves",
    "LoggingConfig": "the output of all ranks is shown with a prefix; use the logging module",
    "BackendConfig": "the nearest thing is ray.train.torch.TorchConfig",
    "lightning": _TORCH,
    "huggingface": _TORCH,
    "tensorflow": "the nearest thing is ray.train.torch",
    "xgboost": "the nearest thing is ray.train.torch",
    "lightgbm": "the nearest thing is ray.train.torch",
    "v2": "its names are ray.train's own here",
    "session": "its functions are ray.train.report, ray.train.get_checkpoint and ray.train.get_context",
}
__getattr__ = names("ray.train", _HOMES, _HINTS)
