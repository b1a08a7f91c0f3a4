import ray.train
import ray.train.collective
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    print(f"Rank {ray.train.get_context().get_world_rank()} is waiting at the barrier.")
    ray.train.collective.barrier()
    print(f"Rank {ray.train.get_context().get_world_rank()} has passed the barrier.")


TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
