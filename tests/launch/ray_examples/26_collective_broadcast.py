import ray.train
from ray.train import ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchTrainer


def train_func():
    rank = ray.train.get_context().get_world_rank()
    data = {"some_key": "some_value"} if rank == 0 else None
    data = ray.train.collective.broadcast_from_rank_zero(data)
    assert data == {"some_key": "some_value"}
    assert broadcast_from_rank_zero(rank) == 0


TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
