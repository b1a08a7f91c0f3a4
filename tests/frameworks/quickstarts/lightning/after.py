import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainjob.lightning import ReportCallback, TrainJobDDPStrategy, prepare_trainer


class AutoEncoder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 16))

    def training_step(self, batch, batch_idx):
        x = batch[0]
        loss = torch.nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


train_loader = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=8)
trainer = pl.Trainer(max_epochs=1, strategy=TrainJobDDPStrategy(), callbacks=[ReportCallback()])
prepare_trainer(trainer).fit(AutoEncoder(), train_loader, ckpt_path="auto")
