"""The quick start as it stands in many repositories: image classifier, prepare_*, rank 0 saves in a temporary
directory.
"""

import os
import sys
import tempfile

import torch
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from trainjob.compat import ray  # was: import ray.train.torch


def make_data():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(256, 1, 8, 8, generator=generator)
    return TensorDataset(images, (images.mean(dim=(1, 2, 3)) > 0).long())


def train_func():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = ray.train.torch.prepare_model(model)
    criterion = CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=0.01)

    train_loader = DataLoader(make_data(), batch_size=32, shuffle=True)
    train_loader = ray.train.torch.prepare_data_loader(train_loader)

    for epoch in range(4):
        if ray.train.get_context().get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)

        for images, labels in train_loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = {"loss": loss.item(), "epoch": epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(temp_checkpoint_dir))
        if ray.train.get_context().get_world_rank() == 0:
            print(metrics)


if __name__ == "__main__":
    scaling_config = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
    trainer = ray.train.torch.TorchTrainer(
        train_func, scaling_config=scaling_config, run_config=ray.train.RunConfig(storage_path=sys.argv[1])
    )
    result = trainer.fit()

    with result.checkpoint.as_directory() as checkpoint_dir:
        model_state_dict = torch.load(os.path.join(checkpoint_dir, "model.pt"))
    assert set(model_state_dict) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert result.metrics["epoch"] == 3
    assert len(result.metrics_dataframe) == 4
