import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    ray.train.report({"n": ray.train.get_context().get_world_size()})


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=(1, 2), use_gpu=False)).fit()
assert result.metrics["n"] in (1, 2)
