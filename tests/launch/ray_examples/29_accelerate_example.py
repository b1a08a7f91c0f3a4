import os
import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,))), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        metrics = {"loss": loss.item(), "world": accelerator.num_processes}
        with tempfile.TemporaryDirectory() as tmpdir:
            torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(tmpdir, "model.pt"))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(tmpdir))


result = TorchTrainer(train_func, train_loop_config={"lr": 0.01}, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.metrics["world"] == 2, result.metrics
