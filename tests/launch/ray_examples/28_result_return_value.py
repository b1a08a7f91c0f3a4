import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    return {"rank": ray.train.get_context().get_world_rank()}


assert TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit().return_value == {"rank": 0}
