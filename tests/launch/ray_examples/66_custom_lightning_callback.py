import os
import tempfile
import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from pytorch_lightning.callbacks import Callback


class CustomRayTrainReportCallback(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        should_checkpoint = trainer.current_epoch % 1 == 0
        with tempfile.TemporaryDirectory() as tmpdir:
            metrics = trainer.callback_metrics
            metrics = {k: v.item() for k, v in metrics.items()}
            metrics["epoch"] = trainer.current_epoch
            checkpoint = None
            global_rank = ray.train.get_context().get_world_rank() == 0
            if global_rank and should_checkpoint:
                ckpt_path = os.path.join(tmpdir, "ckpt.pt")
                torch.save(pl_module.state_dict(), ckpt_path)
                checkpoint = Checkpoint.from_directory(tmpdir)
            ray.train.report(metrics=metrics, checkpoint=checkpoint)


class M(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = self.inner(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_func():
    trainer = pl.Trainer(
        max_epochs=2, devices="auto", accelerator="cpu", strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()],
        callbacks=[CustomRayTrainReportCallback()], enable_checkpointing=False, logger=False,
    )
    trainer = prepare_trainer(trainer)
    trainer.fit(M(), DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4))


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.checkpoint
