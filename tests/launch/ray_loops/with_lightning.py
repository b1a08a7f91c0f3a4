"""A Lightning Trainer on the job's ranks, by Ray's strategy, environment and callback; it fails once and goes on."""

import sys

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from trainjob.compat.ray.train import FailureConfig, RunConfig, ScalingConfig
from trainjob.compat.ray.train.lightning import RayTrainReportCallback
from trainjob.compat.ray.train.torch import TorchTrainer

from trainjob.compat import ray


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = self.inner(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Fails(pl.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            raise RuntimeError("on purpose")


def train():
    checkpoint = ray.train.get_checkpoint()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback(), *([] if checkpoint else [Fails()])],
        enable_progress_bar=False,
        enable_checkpointing=False,  # Lightning's own, in the working folder
        logger=False,
    )
    assert trainer.world_size == 2
    trainer = ray.train.lightning.prepare_trainer(trainer)
    data = DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4)
    if checkpoint:
        with checkpoint.as_directory() as folder:
            trainer.fit(Line(), data, ckpt_path=f"{folder}/{RayTrainReportCallback.CHECKPOINT_NAME}")
    else:
        trainer.fit(Line(), data)
    return trainer.num_training_batches, ray.train.get_context().get_world_rank()


if __name__ == "__main__":
    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="line",
            storage_path=sys.argv[1],
            failure_config=FailureConfig(max_failures=1),
            prefork="Always",  # Lightning takes seconds to import: once for both attempts
            preload=["torch", "pytorch_lightning"],
        ),
    ).fit()
    assert result.return_value == (2, 0), result.return_value  # each rank has its half of four batches
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [0, 1]
    assert result.metrics["step"] == 4 and result.metrics["loss"] > 0
    assert result.checkpoint.files() == ["checkpoint.ckpt"]

    try:
        ray.train.lightning.prepare_trainer(pl.Trainer(accelerator="cpu", logger=False))
    except RuntimeError as error:
        assert "which does not know the job's ranks" in str(error), error
    else:
        raise AssertionError("a Trainer that knows nothing of the ranks")
