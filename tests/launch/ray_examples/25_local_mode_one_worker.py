import os
import tempfile
import torch
import ray.train.torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    if ray.train.get_context().get_local_rank() == 0:
        print("only local rank 0 downloads")
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), os.path.join(d, "model.pt"))
        ray.train.report({"loss": 1}, checkpoint=ray.train.Checkpoint.from_directory(d))


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=1, use_gpu=False)).fit()
assert result.checkpoint
