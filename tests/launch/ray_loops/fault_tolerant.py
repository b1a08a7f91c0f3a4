"""The fault tolerance guide: resume from get_checkpoint().as_directory(), optimizer and epoch in one file."""

import os
import sys
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

from trainjob.compat import ray


def train_func(config):
    n = 100
    X = torch.linspace(0, 1, n).reshape(n, 1)
    Y = 2 * X + 1
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    start_epoch = 0

    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            state = torch.load(os.path.join(checkpoint_dir, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"] + 1

    model = ray.train.torch.prepare_model(model)
    loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True))

    for epoch in range(start_epoch, config["num_epochs"]):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            should_checkpoint = epoch % config.get("checkpoint_freq", 1) == 0
            if ray.train.get_context().get_world_rank() == 0 and should_checkpoint:
                torch.save(
                    {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()},
                    os.path.join(temp_checkpoint_dir, "state.pt"),
                )
                checkpoint = ray.train.Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report({"loss": loss.item(), "epoch": epoch, "started_at": start_epoch}, checkpoint=checkpoint)
        if epoch == 3 and start_epoch == 0:
            os._exit(1)


if __name__ == "__main__":
    trainer = ray.train.torch.TorchTrainer(
        train_func,
        train_loop_config={"lr": 0.1, "num_epochs": 8, "checkpoint_freq": 2},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="train_fault_tolerance_example",
            storage_path=sys.argv[1],
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    )
    result = trainer.fit()
    assert result.metrics["epoch"] == result.checkpoint.metrics["epoch"] == 6, "those of the latest checkpoint"
    assert result.rows[-1]["metrics"]["epoch"] == 7
    assert result.metrics["started_at"] == 3
    assert result.path.startswith(sys.argv[1])
