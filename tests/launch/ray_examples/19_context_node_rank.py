import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_fn_per_worker():
    print(ray.train.get_context().get_node_rank())
    assert ray.train.get_context().get_node_rank() == 0


TorchTrainer(train_fn_per_worker, scaling_config=ScalingConfig(num_workers=2)).fit()
