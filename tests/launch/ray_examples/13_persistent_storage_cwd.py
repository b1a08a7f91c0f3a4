import os
import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_fn_per_worker(config):
    rank = ray.train.get_context().get_world_rank()
    with open(f"out-{rank}.txt", "w") as f:
        f.write(os.getcwd())
    ray.train.report({"rank": rank})


TorchTrainer(train_fn_per_worker, scaling_config=ScalingConfig(num_workers=2)).fit()
