"""Which of Ray's public names are answered, by what, and what is said of the others: data alone.

Read by `finder.py` (imports and attributes) and by docs/ray_table.py (the table of docs/migrating-from-ray-train.md).
tests/session/test_ray_names.py holds it to the names that Ray 2.60 itself exports.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Optional


class Answer(NamedTuple):
    """What stands behind one of Ray's names."""

    ours: str
    """module:name"""
    differs: Optional[str] = None
    """How it differs; None: a loop sees no difference that the page does not tell of below the table."""


def _ours(names: str, module: str = "trainjob") -> Dict[str, Answer]:
    return {name: Answer(f"{module}:{name}") for name in names.split()}


_CONFIGS: Dict[str, Answer] = {
    "CheckpointConfig": Answer("trainjob:CheckpointConfig", "no `checkpoint_frequency`: report when you save"),
    "FailureConfig": Answer("trainjob:FailureConfig", "preemptions are never counted"),
    "RunConfig": Answer("trainjob:RunConfig", "frozen; a run's folder is `storage_path`/default/name"),
    "ScalingConfig": Answer("trainjob:ScalingConfig", "frozen; whole GPUs"),
}
_REPORTED = Answer("trainjob:report", "`checkpoint_dir_name` is a link to the checkpoint, on a path")
_LOOP = {**_ours("get_checkpoint get_context"), "report": _REPORTED}
_CONTEXT = Answer("trainjob:TrainContext", "`get_storage()` is the folder, a str with Ray's names for paths")
_RESULT = Answer("trainjob:Result", "`filesystem` needs pyarrow")
_CALLBACK = Answer("trainjob:UserCallback", "of its hooks `after_report` and `after_exception`")
_TRAINER = Answer("trainjob:DataParallelTrainer", "no `datasets`, no `backend_config`")
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
    "Checkpoint": Answer("trainjob:Checkpoint", "`filesystem` needs pyarrow; `from_dict` and `to_dict` are there"),
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

ANSWERED: Mapping[str, Mapping[str, Answer]] = {
    "ray": {
        "init": Answer(
            f"{_EXTRAS}:init", "warns once: there is nothing to connect to; `runtime_env={'env_vars': ...}` counts"
        ),
        "is_initialized": Answer(f"{_EXTRAS}:is_initialized"),
        "shutdown": Answer(f"{_EXTRAS}:shutdown", "forgets what init() gave"),
    },
    "ray.train": _TRAIN,
    "ray.train.collective": _ours("barrier broadcast_from_rank_zero"),
    "ray.train.torch": {
        **_ours("TorchConfig get_device get_devices prepare_model"),
        "TorchCheckpoint": Answer("trainjob.compat.ray_torch:TorchCheckpoint", "no preprocessor"),
        "TorchTrainer": Answer("trainjob:TorchTrainer", "no `datasets`"),
        "enable_reproducibility": Answer(
            "trainjob:enable_reproducibility",
            "after `prepare_model()` each rank draws its own; `same_on_all_ranks=True` for Ray's",
        ),
        "prepare_data_loader": Answer("trainjob:prepare_data_loader", "resumes inside an epoch by itself (above)"),
    },
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
        "XGBoostTrainer": Answer("trainjob:XGBoostTrainer", "a function on the ranks: no `params`, no `datasets`"),
        **_ours("RayTrainReportCallback", _XGBOOST),
    },
    "ray.train.lightgbm": {
        "LightGBMTrainer": Answer("trainjob:LightGBMTrainer", "a function on the ranks: no `params`, no `datasets`"),
        **_ours("RayTrainReportCallback get_network_params", _LIGHTGBM),
    },
    "ray.train.tensorflow": {"TensorflowTrainer": Answer("trainjob:TensorflowTrainer", "no `datasets`")},
    "ray.train.tensorflow.keras": {"ReportCheckpointCallback": _KERAS},
    "ray.train.v2.jax": {"JaxTrainer": Answer("trainjob:JaxTrainer", "CPUs and GPUs; no `jax_config`")},
    "ray.train.data_parallel_trainer": {"DataParallelTrainer": _TRAINER},
    "ray.train.context": {"TrainContext": _CONTEXT, **_ours("get_context")},
    "ray.train.error": {"TrainingFailedError": _TRAIN["TrainingFailedError"]},
    "ray.train.session": {**_LOOP},
    "ray.train.v2": {},
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
"""Ray's module -> its names that are here."""

_DATA = "read data with a torch DataLoader and ray.train.torch.prepare_data_loader"
_TASKS = (
    "TrainJob runs training functions on ranks, not tasks and actors; use multiprocessing or concurrent.futures "
    "inside a rank"
)
_TUNE = (
    "start one job per trial (`tj run`, TorchTrainer.fit()) from a loop or from a search library such as Optuna, and "
    "read Result.metrics"
)
_NODES = "there is no cluster of TrainJob's own; ask Kubernetes (`kubectl get nodes`)"
_PREEMPTION = (
    "leave it out, and report a checkpoint as often as you could bear to train anew: a pod that is preempted is "
    "replaced without being counted against max_failures, and what report() acknowledged is kept"
)

ABSENT: Mapping[str, str] = {
    "ray.air": "its names moved to ray.train, which is here",
    "ray.air.execution": _TASKS,
    "ray.air.integrations": "give RunConfig(callbacks=[...]) a WandbLogger() or MLflowLogger() of trainjob.trackers, "
    "or call wandb, mlflow or comet in the loop, on rank 0: get_context().get_world_rank() == 0",
    "ray.autoscaler": _NODES,
    "ray.available_resources": _NODES,
    "ray.cluster_resources": _NODES,
    "ray.nodes": _NODES,
    "ray.data": _DATA,
    "ray.get_gpu_ids": "use ray.train.torch.get_devices()",
    "ray.get_runtime_context": "use ray.train.get_context()",
    "ray.serve": "load ray.train.Checkpoint(path) in a server of your own",
    "ray.rllib": "TrainJob trains with a PyTorch loop of your own",
    "ray.train.BackendConfig": "use ray.train.torch.TorchConfig",
    "ray.train.DataConfig": _DATA,
    "ray.train.NCCLHangError": "a job that takes no step is watched: `tj hang` names the ranks to look at, and with "
    'RunConfig(hang_action="Restart") it starts again from its newest checkpoint (docs/hangs.md)',
    "ray.train.PreemptionError": _PREEMPTION,
    "ray.train.SyncConfig": "give RunConfig(storage_path=...); uploads are asynchronous by themselves",
    "ray.train.TRAIN_DATASET_KEY": _DATA,
    "ray.train.ValidationFn": "it is a type alone: Callable[..., Mapping[str, Any]]",
    "ray.train._internal": "it is private to Ray; what it does for a script is in ray.train and ray.train.torch",
    "ray.train.backend": "use ray.train.torch.TorchConfig",
    "ray.train.base_trainer": "use ray.train.torch.TorchTrainer",
    "ray.train.error": "fit() raises trainjob.TrainingFailedError, a call outside of a rank NotInWorkerError",
    "ray.train.get_dataset_shard": _DATA,
    "ray.train.horovod": "use torch.distributed, which ray.train.torch.prepare_model sets up",
    "ray.train.huggingface": "use transformers.Trainer in ray.train.torch.TorchTrainer's function, with "
    "ray.train.huggingface.transformers.RayTrainReportCallback",
    "ray.train.lightgbm": "use lightgbm.train in LightGBMTrainer's function or in a script, with trainjob.lightgbm: "
    "network_params(), load_booster(), ReportCallback",
    "ray.train.lightgbm.LightGBMConfig": "leave it out: get_network_params() is all that LightGBM needs",
    "ray.train.lightning": "use Lightning's Trainer in ray.train.torch.TorchTrainer's function, with RayDDPStrategy, "
    "RayLightningEnvironment and RayTrainReportCallback of ray.train.lightning",
    "ray.train.tensorflow": "use a loop of your own in TensorflowTrainer's function, and ray.train.report in it",
    "ray.train.tensorflow.TensorflowConfig": "leave it out: TF_CONFIG is made anew for each attempt",
    "ray.train.tensorflow.prepare_dataset_shard": "switch automatic sharding off with tf.data.Options, and read each "
    "rank's own part of the data",
    "ray.train.trainer": "use ray.train.torch.TorchTrainer",
    "ray.train.xgboost": "use xgboost.train in XGBoostTrainer's function or in a script, with trainjob.xgboost: "
    "load_booster(), rounds_left(), ReportCallback",
    "ray.train.xgboost.XGBoostConfig": "leave it out: XGBoostTrainer connects the ranks by itself",
    "ray.train.collective": "use torch.distributed for tensors; ray.train.collective has barrier and "
    "broadcast_from_rank_zero",
    "ray.train.torch.TorchWorkerProfiler": "use torch.profiler",
    "ray.train.torch.accelerate": "use torch.autocast and a GradScaler in the loop, around the model of "
    "ray.train.torch.prepare_model",
    "ray.train.torch.backward": "call loss.backward()",
    "ray.train.torch.get_torch_device": "use ray.train.torch.get_device",
    "ray.train.torch.prepare_optimizer": "use the optimizer as it is, made after ray.train.torch.prepare_model",
    "ray.train.torch.xla": "TrainJob's process groups are gloo and nccl",
    "ray.train.v2.jax": "use ray.train.v2.jax.JaxTrainer",
    "ray.train.v2.jax.JaxConfig": "leave it out: JAX finds the devices by itself, and JAX_PLATFORMS chooses among them",
    "ray.tune": _TUNE,
    "ray.tune.logger": "derive from trainjob.trackers.Tracker for a tracker of your own",
    "ray.tune.logger.JsonLoggerCallback": "the reports are kept as JSON anyway: `tj history NAME -o json`",
    "ray.tune.logger.pretty_print": "use pprint or json.dumps",
    "ray.util": "use ray.train.collective for barriers and broadcasts, torch.distributed for tensors",
    "ray.widgets": "fit() shows its own panel",
    "ray.workflow": _TASKS,
    "ray.ClientBuilder": _NODES,
    "ray.LoggingConfig": "the output of all ranks is shown with a prefix; use the logging module",
    "ray.client": _NODES,
    "ray.timeline": "use torch.profiler",
    **{
        f"ray.{name}": _TASKS
        for name in (
            *("ActorClassID", "ActorID", "DynamicObjectRefGenerator", "FunctionID", "JobID", "Language", "NodeID"),
            *("ObjectID", "ObjectRef", "ObjectRefGenerator", "PlacementGroupID", "SCRIPT_MODE", "TaskID", "UniqueID"),
            *("WORKER_MODE", "WorkerID", "actor", "cancel", "cpp_function", "get", "get_actor", "internal"),
            *("java_actor_class", "java_function", "kill", "method", "put", "remote", "wait"),
        )
    },
}
"""The way out for a name that is not here, or for all below it: the longest entry counts."""


def way_out(theirs: str) -> Optional[str]:
    """What to do instead of a name of Ray's; None: nothing is known of it."""
    above = theirs
    while above:
        if above in ABSENT:
            return ABSENT[above]
        above = above.rpartition(".")[0]
    # Where `ray.train` has its names from.
    return ABSENT.get(f"ray.train.{theirs.rpartition('.')[2]}") if theirs.startswith("ray.train.v2.api.") else None
