import torch
import pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer
import ray.train


class M(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        loss = self.inner(batch[0]).pow(2).mean()
        self.log("loss", loss)
        self.log("accuracy", 1 - loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_func():
    trainer = pl.Trainer(
        max_epochs=3,
        devices="auto",
        accelerator="cpu",
        strategy=RayDDPStrategy(find_unused_parameters=True),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    ckpt = ray.train.get_checkpoint()
    if ckpt:
        with ckpt.as_directory() as d:
            trainer.fit(M(), DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4), ckpt_path=d + "/checkpoint.ckpt")
    else:
        trainer.fit(M(), DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=4))


result = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max")),
).fit()
assert len(result.best_checkpoints) == 2
