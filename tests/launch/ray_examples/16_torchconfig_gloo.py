import torch.distributed as dist
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train():
    assert dist.get_backend() == "gloo"
    ray.train.report({"a": 1})


TorchTrainer(train, torch_config=TorchConfig(backend="gloo", timeout_s=60), scaling_config=ScalingConfig(num_workers=2)).fit()
