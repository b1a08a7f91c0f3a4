import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

NUM_WORKERS = 2


def train_fn_per_worker(config):
    assert ray.train.get_context().get_world_size() == NUM_WORKERS


TorchTrainer(train_fn_per_worker, scaling_config=ScalingConfig(num_workers=NUM_WORKERS)).fit()
