"""Which of Ray's public names are answered, and by what: data alone. What is said of the others: `ray_absent.py`.

Read by `finder.py` (imports and attributes) and by docs/ray_table.py (the table of docs/migrating-from-ray-train.md).
tests/session/test_ray_names.py holds it to the names that Ray 2.60 itself exports.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional, Tuple


class Answer(NamedTuple):
    """What stands behind one of Ray's names."""

    ours: str
    """module:name"""
    differs: Optional[str] = None
    """How it differs; None: a loop sees no difference that the page does not tell of below the table."""
    met_by: Tuple[str, ...] = ()
    """Arguments, attributes and names: a script without any of them cannot meet the difference. Empty: any may."""


def _ours(names: str, module: str = "trainjob") -> Dict[str, Answer]:
    return {name: Answer(f"{module}:{name}") for name in names.split()}


_CONFIGS: Dict[str, Answer] = {
    "CheckpointConfig": Answer(
        "trainjob:CheckpointConfig", "no `checkpoint_frequency`: report when you save", ("checkpoint_frequency",)
    ),
    "FailureConfig": Answer("trainjob:FailureConfig", "preemptions are never counted", ("max_preemption_failures",)),
    "RunConfig": Answer(
        "trainjob:RunConfig", "frozen; a run's folder is `storage_path`/default/name", ("name", "storage_path")
    ),
    "ScalingConfig": Answer("trainjob:ScalingConfig", "frozen; whole GPUs", ("resources_per_worker",)),
}
_REPORTED = Answer(
    "trainjob:report", "`checkpoint_dir_name` is a link to the checkpoint, on a path", ("checkpoint_dir_name",)
)
_LOOP = {**_ours("get_checkpoint get_context"), "report": _REPORTED}
_CONTEXT = Answer(
    "trainjob:TrainContext", "`get_storage()` is the folder, a str with Ray's names for paths", ("get_storage",)
)
_RESULT = Answer("trainjob:Result", "`filesystem` needs pyarrow", ("filesystem",))
_CALLBACK = Answer("trainjob:UserCallback", "of its hooks `after_report` and `after_exception`")
_TRAINER = Answer("trainjob:DataParallelTrainer", "no `datasets`, no `backend_config`", ("datasets", "backend_config"))
_EXTRAS = "trainjob.compat.ray_extras"
_LIGHTNING = "trainjob.compat.ray_lightning"
_TRANSFORMERS = "trainjob.compat.ray_transformers"
_TRACKERS = "trainjob.compat.ray_trackers"
_KERAS = Answer("trainjob.compat.ray_keras:ReportCheckpointCallback", "the file is `model.keras`")
_XGBOOST, _LIGHTGBM = "trainjob.compat.ray_xgboost", "trainjob.compat.ray_lightgbm"

_NOTICE = {
    "PreemptionInfo": Answer("trainjob:PreemptionInfo", "a named tuple; a node is a worker, named by its pod"),
    "get_preemption_info": Answer(
        "trainjob:get_preemption_info", "no broadcast: what came with the last report(), the same on all ranks"
    ),
}

_TRAIN: Dict[str, Answer] = {
    **_NOTICE,
    **_ours("CheckpointUploadMode get_all_reported_checkpoints"),
    **_CONFIGS,
    **_LOOP,
    "Checkpoint": Answer(
        "trainjob:Checkpoint", "`filesystem` needs pyarrow; `from_dict` and `to_dict` are there", ("filesystem",)
    ),
    "Result": _RESULT,
    "TrainContext": _CONTEXT,
    "TrainingFailedError": Answer("trainjob:TrainingFailedError", "tells the first cause; has `worker_failures`"),
    "UserCallback": _CALLBACK,
    "CheckpointConsistencyMode": Answer("trainjob.session.reported:CheckpointConsistencyMode"),
    "LoggingConfig": Answer(f"{_EXTRAS}:LoggingConfig", "accepted: the ranks' output is shown as it is"),
    "ControllerError": Answer("trainjob.launch.errors:LaunchError", "raised when a job cannot be started"),
    "ReportedCheckpoint": Answer("trainjob:ReportedCheckpoint", "a named tuple"),
    "ReportedCheckpointStatus": Answer("trainjob.session.reported:ReportedCheckpointStatus"),
    "ValidationConfig": Answer(
        "trainjob:ValidationConfig", "runs on rank 0's worker; of `ray_remote_kwargs` only `num_gpus`"
    ),
    **_ours("ValidationTaskConfig"),
    "WorkerGroupError": Answer("trainjob:TrainingFailedError", "the one error of a failed job; has `worker_failures`"),
}

_TORCH: Dict[str, Answer] = {
    **_ours("TorchConfig get_device get_devices prepare_model"),
    "TorchCheckpoint": Answer("trainjob.compat.ray_torch:TorchCheckpoint", "no preprocessor"),
    "TorchTrainer": Answer("trainjob:TorchTrainer", "no `datasets`", ("datasets",)),
    "enable_reproducibility": Answer(
        "trainjob:enable_reproducibility",
        "after `prepare_model()` each rank draws its own; `same_on_all_ranks=True` for Ray's",
    ),
    "prepare_data_loader": Answer(
        "trainjob:prepare_data_loader", "resumes inside an epoch by itself: no skip code of your own"
    ),
}
_IN_THE_LOOP = ("enable_reproducibility", "get_device", "get_devices", "prepare_data_loader", "prepare_model")
_XGBOOST_TRAINER = Answer("trainjob:XGBoostTrainer", "a function on the ranks: no `params`, no `datasets`")
_LIGHTGBM_TRAINER = Answer("trainjob:LightGBMTrainer", "a function on the ranks: no `params`, no `datasets`")

ANSWERED: Mapping[str, Mapping[str, Answer]] = {
    "ray": {
        "init": Answer(
            f"{_EXTRAS}:init", "warns once: there is nothing to connect to; `runtime_env={'env_vars': ...}` counts"
        ),
        "is_initialized": Answer(f"{_EXTRAS}:is_initialized"),
        "shutdown": Answer(f"{_EXTRAS}:shutdown", "forgets what init() gave", ("runtime_env",)),
    },
    "ray.train": _TRAIN,
    "ray.train.collective": _ours("barrier broadcast_from_rank_zero"),
    "ray.train.torch": _TORCH,
    "ray.train.huggingface": {},
    "ray.train.huggingface.transformers": {
        "RayTrainReportCallback": Answer(
            f"{_TRANSFORMERS}:RayTrainReportCallback", "one rank of a worker brings the files"
        ),
        **_ours("prepare_trainer", _TRANSFORMERS),
    },
    "ray.train.lightning": {
        **_ours("RayDDPStrategy RayFSDPStrategy RayDeepSpeedStrategy RayLightningEnvironment", _LIGHTNING),
        "RayTrainReportCallback": Answer(
            f"{_LIGHTNING}:RayTrainReportCallback",
            "`ASYNC` unless you say `SYNC`; more often than once an epoch: `trainjob.lightning.ReportCallback`",
        ),
        **_ours("prepare_trainer", _LIGHTNING),
    },
    "ray.train.xgboost": {
        "XGBoostTrainer": _XGBOOST_TRAINER,
        **_ours("RayTrainReportCallback", _XGBOOST),
    },
    "ray.train.lightgbm": {
        "LightGBMTrainer": _LIGHTGBM_TRAINER,
        **_ours("RayTrainReportCallback get_network_params", _LIGHTGBM),
    },
    "ray.train.tensorflow": {"TensorflowTrainer": Answer("trainjob:TensorflowTrainer", "no `datasets`")},
    "ray.train.tensorflow.keras": {"ReportCheckpointCallback": _KERAS},
    "ray.train.v2.jax": {"JaxTrainer": Answer("trainjob:JaxTrainer", "CPUs and GPUs; no `jax_config`")},
    "ray.train.data_parallel_trainer": {"DataParallelTrainer": _TRAINER},
    "ray.train.context": {"TrainContext": _CONTEXT, **_ours("get_context")},
    "ray.train.error": {"TrainingFailedError": _TRAIN["TrainingFailedError"]},
    "ray.train.session": {**_LOOP},
    "ray.train._checkpoint": {"Checkpoint": _TRAIN["Checkpoint"]},
    "ray.train.torch.config": _ours("TorchConfig"),
    "ray.train.torch.torch_checkpoint": {"TorchCheckpoint": _TORCH["TorchCheckpoint"]},
    "ray.train.torch.torch_trainer": {"TorchTrainer": _TORCH["TorchTrainer"]},
    "ray.train.torch.train_loop_utils": {name: _TORCH[name] for name in _IN_THE_LOOP},
    "ray.train.v2": {},
    "ray.train.v2.lightgbm": {},
    "ray.train.v2.lightgbm.lightgbm_trainer": {"LightGBMTrainer": _LIGHTGBM_TRAINER},
    "ray.train.v2.torch": {},
    "ray.train.v2.torch.torch_trainer": {"TorchTrainer": _TORCH["TorchTrainer"]},
    "ray.train.v2.torch.train_loop_utils": {name: _TORCH[name] for name in _IN_THE_LOOP},
    "ray.train.v2.xgboost": {},
    "ray.train.v2.xgboost.xgboost_trainer": {"XGBoostTrainer": _XGBOOST_TRAINER},
    "ray.train.v2.api": {},
    "ray.train.v2.api.callback": {"UserCallback": _CALLBACK},
    "ray.train.v2.api.config": {**_CONFIGS, "LoggingConfig": _TRAIN["LoggingConfig"]},
    "ray.train.v2.api.context": {"TrainContext": _CONTEXT},
    "ray.train.v2.api.data_parallel_trainer": {"DataParallelTrainer": _TRAINER},
    "ray.train.v2.api.exceptions": {
        name: _TRAIN[name] for name in ("ControllerError", "TrainingFailedError", "WorkerGroupError")
    },
    "ray.train.v2.api.report_config": {
        name: _TRAIN[name] for name in ("CheckpointConsistencyMode", "CheckpointUploadMode")
    },
    "ray.train.v2.api.reported_checkpoint": {
        name: _TRAIN[name] for name in ("ReportedCheckpoint", "ReportedCheckpointStatus")
    },
    "ray.train.v2.api.result": {"Result": _RESULT},
    "ray.train.v2.api.validation_config": {name: _TRAIN[name] for name in ("ValidationConfig", "ValidationTaskConfig")},
    "ray.train.v2.api.train_fn_utils": {**_LOOP, **_ours("get_all_reported_checkpoints get_preemption_info")},
    "ray.train.v2.api.preemption": _NOTICE,
    "ray.air": {**_CONFIGS, "Result": _RESULT},
    "ray.air.config": {**_CONFIGS},
    "ray.air.result": {"Result": _RESULT},
    "ray.air.session": {**_LOOP},
    "ray.air.integrations": {},
    "ray.air.integrations.keras": {"ReportCheckpointCallback": _KERAS},
    "ray.air.integrations.mlflow": {
        "MLflowLoggerCallback": Answer(f"{_TRACKERS}:MLflowLoggerCallback", "one run a training; no artifacts")
    },
    "ray.air.integrations.wandb": {
        "WandbLoggerCallback": Answer(f"{_TRACKERS}:WandbLoggerCallback", "one run a training; uploads no checkpoints")
    },
    "ray.tune": {},
    "ray.tune.logger": {
        "CSVLoggerCallback": Answer("trainjob.trackers:CSVLogger", "the file is `metrics.csv` in the job's folder"),
        "TBXLoggerCallback": Answer("trainjob.trackers:TensorBoardLogger", "in the job's folder; no hparams tab"),
    },
}
"""Ray's module -> its names that are here, in the modules too in which Ray defines them: editors import from there."""
