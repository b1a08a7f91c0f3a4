import os
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset
import pytorch_lightning as pl

import ray.train.lightning
from ray.train.torch import TorchTrainer


class ImageClassifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        self.criterion = torch.nn.CrossEntropyLoss()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.forward(x), y)
        self.log("loss", loss, on_step=True, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=0.001)


def train_func():
    data_dir = os.path.join(tempfile.gettempdir(), "data")
    train_data = TensorDataset(torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,)))
    train_dataloader = DataLoader(train_data, batch_size=16, shuffle=True)
    model = ImageClassifier()
    trainer = pl.Trainer(
        max_epochs=2,
        devices="auto",
        accelerator="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback()],
        enable_checkpointing=False,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    trainer.fit(model, train_dataloaders=train_dataloader)


scaling_config = ray.train.ScalingConfig(num_workers=2, use_gpu=False)
trainer = TorchTrainer(train_func, scaling_config=scaling_config)
result: ray.train.Result = trainer.fit()
with result.checkpoint.as_directory() as checkpoint_dir:
    model = ImageClassifier.load_from_checkpoint(os.path.join(checkpoint_dir, "checkpoint.ckpt"), weights_only=False)
