import os
from typing import Dict

import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def get_dataloaders(batch_size):
    with FileLock(os.path.expanduser("~/data.lock")):
        training_data = TensorDataset(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
        test_data = TensorDataset(torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,)))
    return DataLoader(training_data, batch_size=batch_size, shuffle=True), DataLoader(test_data, batch_size=batch_size)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.stack = nn.Sequential(nn.Linear(28 * 28, 32), nn.ReLU(), nn.Dropout(0.25), nn.Linear(32, 10), nn.ReLU())

    def forward(self, x):
        return self.stack(self.flatten(x))


def train_func_per_worker(config: Dict):
    lr, epochs, batch_size = config["lr"], config["epochs"], config["batch_size_per_worker"]
    train_dataloader, test_dataloader = get_dataloaders(batch_size=batch_size)
    train_dataloader = ray.train.torch.prepare_data_loader(train_dataloader)
    test_dataloader = ray.train.torch.prepare_data_loader(test_dataloader)
    model = ray.train.torch.prepare_model(NeuralNetwork())
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for epoch in range(epochs):
        if ray.train.get_context().get_world_size() > 1:
            train_dataloader.sampler.set_epoch(epoch)
        model.train()
        for X, y in tqdm(train_dataloader, desc=f"Train Epoch {epoch}"):
            loss = loss_fn(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        test_loss, num_correct, num_total = 0, 0, 0
        with torch.no_grad():
            for X, y in tqdm(test_dataloader, desc=f"Test Epoch {epoch}"):
                pred = model(X)
                test_loss += loss_fn(pred, y).item()
                num_total += y.shape[0]
                num_correct += (pred.argmax(1) == y).sum().item()
        ray.train.report(metrics={"loss": test_loss / len(test_dataloader), "accuracy": num_correct / num_total})


def train_fashion_mnist(num_workers=2, use_gpu=False):
    global_batch_size = 32
    trainer = TorchTrainer(
        train_loop_per_worker=train_func_per_worker,
        train_loop_config={"lr": 1e-3, "epochs": 2, "batch_size_per_worker": global_batch_size // num_workers},
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
    )
    result = trainer.fit()
    print(f"Training result: {result}")


if __name__ == "__main__":
    train_fashion_mnist(num_workers=2, use_gpu=False)
