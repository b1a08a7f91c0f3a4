import ray.train
from ray.train import ScalingConfig, TrainingFailedError, WorkerGroupError
from ray.train.torch import TorchTrainer


def train_fn(config):
    if ray.train.get_context().get_world_rank() == 1:
        raise ValueError("broken")
    ray.train.report({"a": 1})


trainer = TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2))
try:
    trainer.fit()
except ray.train.WorkerGroupError as e:
    print(e.worker_failures)
    assert list(e.worker_failures) == [1] and isinstance(e.worker_failures[1], ValueError)
else:
    raise SystemExit("no error")
