from accelerate import Accelerator
import torch
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    ray.train.report({"n": accelerator.num_processes})


TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
