import os
import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ray.init(runtime_env={"env_vars": {"WANDB_API_KEY": "your_api_key"}})


def train_func():
    if ray.train.get_context().get_world_rank() == 0:
        assert os.environ["WANDB_API_KEY"] == "your_api_key"
    ray.train.report({"a": 1})


TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
