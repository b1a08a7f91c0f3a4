"""What is said of Ray's names that are not here: data alone, and how it is found.

Read by `finder.py` (imports and attributes) and by docs/ray_table.py.
"""

from __future__ import annotations

from typing import Mapping, Optional

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
_MODEL = "load the model of a checkpoint and call it: Result.checkpoint.as_directory() (docs/using-the-model.md)"
_RANKS = ("world_rank", "world_size", "local_rank", "local_world_size", "node_rank")
_OF_THE_CONTEXT = ("experiment_name", "trial_name", "trial_id", "trial_dir")
_PREEMPTION = (
    "leave it out, and report a checkpoint as often as you could bear to train anew: a pod that is preempted is "
    "replaced without being counted against max_failures, and what report() acknowledged is kept"
)

ABSENT: Mapping[str, str] = {
    "ray.air": "its names moved to ray.train, which is here",
    "ray.air.checkpoint": "use ray.train.Checkpoint",
    "ray.air.execution": _TASKS,
    "ray.air.integrations": "give RunConfig(callbacks=[...]) a WandbLogger() or MLflowLogger() of trainjob.trackers, "
    "or call wandb, mlflow or comet in the loop, on rank 0: get_context().get_world_rank() == 0",
    "ray.autoscaler": _NODES,
    "ray.available_resources": _NODES,
    "ray.cluster_resources": _NODES,
    "ray.nodes": _NODES,
    "ray.air.session.get_dataset_shard": _DATA,
    "ray.data": _DATA,
    "ray.exceptions": "fit() raises ray.train.TrainingFailedError, whose worker_failures has the errors by rank",
    "ray.job_submission": "`tj submit train.py` starts a script on a cluster, `tj status` and `tj logs` follow it",
    "ray.get_gpu_ids": "use ray.train.torch.get_devices()",
    "ray.get_runtime_context": "use ray.train.get_context()",
    "ray.serve": "load ray.train.Checkpoint(path) in a server of your own",
    "ray.runtime_env": 'give RunConfig(worker_runtime_env={"env_vars": {...}})',
    "ray.rllib": "TrainJob trains with a PyTorch loop of your own",
    "ray.train.BackendConfig": "use ray.train.torch.TorchConfig",
    "ray.train.DataConfig": _DATA,
    "ray.train.NCCLHangError": "a job that takes no step is watched: `tj hang` names the ranks to look at, and with "
    'RunConfig(hang_action="Restart") it starts again from its newest checkpoint (docs/hangs.md)',
    "ray.train.PreemptionError": _PREEMPTION,
    "ray.train.SyncConfig": "give RunConfig(storage_path=...); uploads are asynchronous by themselves",
    "ray.train.TRAIN_DATASET_KEY": _DATA,
    "ray.train.Trainer": "use ray.train.torch.TorchTrainer",
    "ray.train.TrainingCallback": "derive from ray.train.UserCallback",
    "ray.train.ValidationFn": "it is a type alone: Callable[..., Mapping[str, Any]]",
    "ray.train._internal": "it is private to Ray; what it does for a script is in ray.train and ray.train.torch",
    "ray.train.backend": "use ray.train.torch.TorchConfig",
    "ray.train.batch_predictor": _MODEL,
    "ray.train.callbacks": "derive from ray.train.UserCallback",
    "ray.train.constants": "its values are Ray's own: leave it out",
    "ray.train.cross_validation": "call TorchTrainer.fit() in a loop over the folds, with the fold's number in "
    "train_loop_config and in RunConfig(name=...)",
    "ray.train.examples": "put the function into your script",
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
    "ray.train.load_checkpoint": "use ray.train.get_checkpoint()",
    "ray.train.mosaic": "use a loop of your own in ray.train.torch.TorchTrainer's function",
    "ray.train.predictor": _MODEL,
    "ray.train.save_checkpoint": "use ray.train.report(metrics, checkpoint=...)",
    "ray.train.sklearn": "it trains in one process: call the estimator's fit() in a plain script",
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
    "ray.train.torch.TorchPredictor": _MODEL,
    "ray.train.torch.TorchWorkerProfiler": "use torch.profiler",
    "ray.train.torch.accelerate": "use torch.autocast and a GradScaler in the loop, around the model of "
    "ray.train.torch.prepare_model",
    "ray.train.torch.backward": "call loss.backward()",
    "ray.train.torch.get_torch_device": "use ray.train.torch.get_device",
    "ray.train.torch.prepare_optimizer": "use the optimizer as it is, made after ray.train.torch.prepare_model",
    "ray.train.torch.torch_predictor": _MODEL,
    "ray.train.torch.xla": "TrainJob's process groups are gloo and nccl",
    "ray.train.v2.jax": "use ray.train.v2.jax.JaxTrainer",
    "ray.train.v2.jax.JaxConfig": "leave it out: JAX finds the devices by itself, and JAX_PLATFORMS chooses among them",
    "ray.tune": _TUNE,
    "ray.tune.logger": "derive from trainjob.trackers.Tracker for a tracker of your own",
    "ray.tune.logger.JsonLoggerCallback": "the reports are kept as JSON anyway: `tj history NAME -o json`",
    "ray.tune.logger.pretty_print": "use pprint or json.dumps",
    "ray.util": "use ray.train.collective for barriers and broadcasts, torch.distributed for tensors, and "
    "ScalingConfig(placement_strategy=..., label_selector=...) for where pods run",
    "ray.widgets": "fit() shows its own panel",
    "ray.workflow": _TASKS,
    "ray.ClientBuilder": _NODES,
    "ray.LoggingConfig": "the output of all ranks is shown with a prefix; use the logging module",
    "ray.client": _NODES,
    "ray.timeline": "use torch.profiler",
    **{f"ray.train.{name}": f"use ray.train.get_context().get_{name}()" for name in _RANKS},
    **{
        f"ray.air.session.get_{name}": f"use ray.train.get_context().get_{name}()"
        for name in (*_RANKS, *_OF_THE_CONTEXT)
    },
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
