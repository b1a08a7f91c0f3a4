import tempfile
import torch
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    assert ray.train.get_context().get_world_size() == 1
    with tempfile.TemporaryDirectory() as d:
        torch.save(model.state_dict(), d + "/m.pt")
        ray.train.report({"loss": 0.1}, checkpoint=Checkpoint.from_directory(d))


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=0, use_gpu=False)).fit()
assert result.metrics["loss"] == 0.1 and result.checkpoint
