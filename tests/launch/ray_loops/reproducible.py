"""Seeds through enable_reproducibility; two runs are equal."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from trainjob.compat import ray


def train_func(config):
    ray.train.torch.enable_reproducibility(seed=config["seed"])
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in loader:
            loss = torch.nn.MSELoss()(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ray.train.report({"loss": loss.item()})


def run(storage):
    trainer = ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={"seed": 7},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        torch_config=ray.train.torch.TorchConfig(backend="gloo", timeout_s=60),
        run_config=ray.train.RunConfig(storage_path=storage),
    )
    return trainer.fit().metrics["loss"]


if __name__ == "__main__":
    assert run(sys.argv[1]) == run(sys.argv[1])
