"""Arguments that Ray's classes have or had and ours have not, each with the way out in one sentence: data alone.

Read by `told_of` where a constructor is given one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHOWN = "fit() shows what happens by itself, and UserCallback.after_report hears of each report"
_ELASTIC = "give num_workers=(least, most)"

_TRAINER: Mapping[str, str] = {
    "preprocessor": "transform the data in the training function, or in the DataLoader's dataset",
    "num_workers": "give scaling_config=ScalingConfig(num_workers=...)",
    "use_gpu": "give scaling_config=ScalingConfig(use_gpu=True)",
    "resources_per_worker": "give scaling_config=ScalingConfig(resources_per_worker=...)",
    "callbacks": "give run_config=RunConfig(callbacks=[...])",
    "name": "give run_config=RunConfig(name=...)",
    "storage_path": "give run_config=RunConfig(storage_path=...)",
    "trainer_init_per_worker": "build what you need in train_loop_per_worker",
    "max_failures": "give run_config=RunConfig(failure_config=FailureConfig(max_failures=...))",
}

_BOOSTED: Mapping[str, str] = {
    "params": "call the library's train() in train_loop_per_worker, with your parameters",
    "label_column": "read the data in train_loop_per_worker, each rank its rows",
    "num_boost_round": "give it to the library's train() in train_loop_per_worker",
}

WAYS_OUT: Mapping[str, Mapping[str, str]] = {
    "ScalingConfig": {
        "elastic_resize_monitor_interval_s": "workers that have been up for a minute join at the next checkpoint: "
        "leave it out",
        "max_workers": _ELASTIC,
        "min_workers": _ELASTIC,
        "use_tpu": "ranks have CPUs or GPUs: leave it out",
        "topology": "it is for TPUs: leave it out",
        "bundle_label_selector": "give label_selector, node labels for all pods",
        "num_cpus_per_worker": 'give resources_per_worker={"CPU": n}',
        "num_gpus_per_worker": 'give use_gpu=True, and resources_per_worker={"GPU": n} for more than one',
    },
    "FailureConfig": {
        "fail_fast": "failures end the job at once with max_failures=0, which is the default",
    },
    "CheckpointConfig": {
        "checkpoint_frequency": "call report(..., checkpoint=...) in the rounds in which you want one",
        "checkpoint_at_end": "call report(..., checkpoint=...) once more after the loop",
        "keep_checkpoints_num": "it is num_to_keep",
        "checkpoint_keep_all": "it is num_to_keep=None, the default",
    },
    "RunConfig": {
        "local_dir": "it is storage_path",
        "sync_config": "give storage_path: checkpoints are uploaded by themselves",
        "progress_reporter": _SHOWN,
        "log_to_file": "tj logs shows what each rank wrote, which is kept beside the checkpoints",
        "checkpoint_score_attr": "give CheckpointConfig(checkpoint_score_attribute=...)",
        "max_failures": "give failure_config=FailureConfig(max_failures=...)",
        "num_to_keep": "give checkpoint_config=CheckpointConfig(num_to_keep=...)",
        "runtime_env": 'give worker_runtime_env={"env_vars": {...}}',
    },
    "TorchConfig": {
        "nccl_options": "set NCCL's environment variables: RunConfig(worker_runtime_env=...)",
    },
    "TorchTrainer": {**_TRAINER, "backend_config": "it is torch_config"},
    "DataParallelTrainer": {
        **_TRAINER,
        "backend_config": "the function sets up what it needs; TorchTrainer brings torch's process group",
        "torch_config": "use TorchTrainer, which brings torch's process group",
    },
    "JaxTrainer": {
        **_TRAINER,
        "jax_config": "JAX finds the devices by itself; set JAX_PLATFORMS with RunConfig(worker_runtime_env=...)",
    },
    "XGBoostTrainer": {**_TRAINER, **_BOOSTED, "xgboost_config": "its collectives are set up by themselves"},
    "LightGBMTrainer": {
        **_TRAINER,
        **_BOOSTED,
        "lightgbm_config": "give the function's lightgbm.train the parameters of trainjob.lightgbm.network_params()",
    },
    "LightningTrainer": {
        **_TRAINER,
        "train_loop_config": "it is trainer_config; what a LightningTrainer left is restored by TorchTrainer.restore()",
    },
    "TransformersTrainer": {
        **_TRAINER,
        "train_loop_config": "it is config; what a TransformersTrainer left is restored by TorchTrainer.restore()",
    },
    "TensorflowTrainer": {
        **_TRAINER,
        "tensorflow_config": "it has nothing to say: TF_CONFIG is made anew for each attempt",
    },
}
"""The class -> its argument -> what to do instead."""
