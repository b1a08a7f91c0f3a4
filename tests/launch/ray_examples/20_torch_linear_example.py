import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn

import ray.train as train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


class LinearDataset(torch.utils.data.Dataset):
    def __init__(self, a, b, size=1000):
        x = np.arange(0, 10, 10 / size, dtype=np.float32)
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(a * x + b)

    def __getitem__(self, index):
        return self.x[index, None], self.y[index, None]

    def __len__(self):
        return len(self.x)


def train_epoch(epoch, dataloader, model, loss_fn, optimizer):
    if train.get_context().get_world_size() > 1:
        dataloader.sampler.set_epoch(epoch)
    for X, y in dataloader:
        pred = model(X)
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate_epoch(dataloader, model, loss_fn):
    num_batches = len(dataloader)
    model.eval()
    loss = 0
    with torch.no_grad():
        for X, y in dataloader:
            loss += loss_fn(model(X), y).item()
    loss /= num_batches
    import copy

    return {"loss": loss}, copy.deepcopy(model.state_dict())


def train_func(config):
    train_loader = torch.utils.data.DataLoader(LinearDataset(2, 5, 200), batch_size=config["batch_size"])
    validation_loader = torch.utils.data.DataLoader(LinearDataset(2, 5, 100), batch_size=config["batch_size"])
    train_loader = train.torch.prepare_data_loader(train_loader)
    validation_loader = train.torch.prepare_data_loader(validation_loader)
    model = train.torch.prepare_model(nn.Linear(1, config["hidden_size"]))
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        train_epoch(epoch, train_loader, model, loss_fn, optimizer)
        result, state_dict = validate_epoch(validation_loader, model, loss_fn)
        with tempfile.TemporaryDirectory() as tempdir:
            torch.save(state_dict, os.path.join(tempdir, "model.pt"))
            train.report(result, checkpoint=Checkpoint.from_directory(tempdir))


def train_linear(num_workers=2, use_gpu=False, epochs=3, storage_path=None):
    config = {"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": epochs}
    trainer = TorchTrainer(
        train_loop_per_worker=train_func,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
        run_config=RunConfig(storage_path=storage_path),
    )
    result = trainer.fit()
    print(result.metrics)
    return result.metrics


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", "-n", type=int, default=2)
    args, _ = parser.parse_known_args()
    import ray

    ray.init()
    train_linear(num_workers=args.num_workers)
