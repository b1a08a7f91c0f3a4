import os
import tempfile

import torch
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

import ray.train.torch


def train_func():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    model = ray.train.torch.prepare_model(model)
    criterion = CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=0.001)
    data_dir = os.path.join(tempfile.gettempdir(), "data")
    os.makedirs(data_dir, exist_ok=True)
    train_data = TensorDataset(torch.randn(128, 1, 28, 28), torch.randint(0, 10, (128,)))
    train_loader = DataLoader(train_data, batch_size=32, shuffle=True)
    train_loader = ray.train.torch.prepare_data_loader(train_loader)
    for epoch in range(3):
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


scaling_config = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
trainer = ray.train.torch.TorchTrainer(train_func, scaling_config=scaling_config)
result = trainer.fit()
with result.checkpoint.as_directory() as checkpoint_dir:
    model_state_dict = torch.load(os.path.join(checkpoint_dir, "model.pt"))
    assert set(model_state_dict) == {"1.weight", "1.bias"}, set(model_state_dict)
