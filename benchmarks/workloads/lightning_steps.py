"""The loop of `steps.py` by Lightning, which notes each finished step in the same way; `alone`: Lightning by itself, as
under torchrun.

Arguments: the file to note in; then `alone` or `ours`, the number of steps, and the width of the model, if steps are
timed: by this process's processor time, which other work on the machine hardly changes.
"""

import os
import sys
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAVE_EVERY = int(os.environ.get("STEPS_SAVE_EVERY", "50"))


class Net(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64))

    def training_step(self, batch, number):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Notes(pl.Callback):
    def __init__(self, path, pause_s, clock):
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._attempt = int(os.environ.get("TRAINJOB_ATTEMPT", "1"))
        self._pause_s = pause_s

    def on_train_start(self, trainer, pl_module):
        self._first = trainer.global_step

    def on_train_batch_end(self, trainer, pl_module, *_, **__):
        step = trainer.global_step - self._first
        said = f"{trainer.global_rank} {os.getpid()} {self._attempt} {step} {self._clock():.6f}\n"
        os.write(self._file, said.encode())
        time.sleep(self._pause_s)


def main(notes, alone="", steps="1000000", width="64"):
    torch.set_num_threads(1)
    rows = DataLoader(TensorDataset(torch.randn(1, 64).expand(32 * 1000, 64)), 32)
    callbacks = [Notes(notes, 0.0, time.process_time) if alone else Notes(notes, 0.005, time.time)]
    given = {"max_steps": int(steps), "max_epochs": -1, "logger": False, "enable_progress_bar": False}
    given.update(enable_model_summary=False, accelerator="cpu", max_time={"minutes": 10})
    if alone == "alone":
        saves = pl.callbacks.ModelCheckpoint(dirpath=f"{notes}-saved", every_n_train_steps=SAVE_EVERY)
        trainer = pl.Trainer(strategy="ddp", devices=2, callbacks=[*callbacks, saves], **given)
        trainer.fit(Net(int(width)), rows)
        return
    from trainjob.lightning import ReportCallback, TrainJobDDPStrategy, prepare_trainer

    callbacks.append(ReportCallback(every_n_train_steps=SAVE_EVERY))
    trainer = pl.Trainer(strategy=TrainJobDDPStrategy(), callbacks=callbacks, **given)
    prepare_trainer(trainer).fit(Net(int(width)), rows, ckpt_path="auto")


if __name__ == "__main__":
    main(*sys.argv[1:])
