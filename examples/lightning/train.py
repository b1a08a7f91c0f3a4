"""PyTorch Lightning on several ranks, with a checkpoint each ten steps and at the end of each epoch.

tj run examples/lightning/train.py --workers 2 --name lightning
"""

import argparse

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob.lightning import ReportCallback, TrainJobDDPStrategy, prepare_trainer


class Rings(pl.LightningModule):
    """Tells from a point of the plane whether it lies inside the circle."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 2)
        )

    def training_step(self, batch, number):
        points, inside = batch
        loss = F.cross_entropy(self.net(points), inside)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        points, inside = batch
        self.log("accuracy", (self.net(points).argmax(1) == inside).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def points(count, seed):
    drawn = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(drawn, (drawn.norm(dim=1) < 1.2).long())


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--points", type=int, default=1600)
given = parser.parse_args()

trainjob.enable_reproducibility(seed=1)  # the same losses with failures as without
trainer = pl.Trainer(
    max_epochs=given.epochs,
    strategy=TrainJobDDPStrategy(),  # (1) which rank this is, and where its device is
    callbacks=[ReportCallback(every_n_train_steps=10)],  # (2) Lightning's checkpoint is the job's
    enable_progress_bar=False,
    logger=False,
)
train, validation = DataLoader(points(given.points, 0), 20, shuffle=True), DataLoader(points(400, 1), 20)
prepare_trainer(trainer).fit(Rings(), train, validation, ckpt_path="auto")  # (3) goes on at the next batch
