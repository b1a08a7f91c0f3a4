"""SIGKILL at random moments inside what a library does to save, and to load: whatever it leaves behind, the next attempt
resumes from a whole checkpoint, and at the end the numbers are those of an undisturbed run, bit for bit.

`TRAINJOB_TEST_KILLS_INSIDE=20` for more moments than the few of `make test-frameworks`; `..._SEED` for others.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

INSIDE = str(Path(__file__).with_name("struck_inside.py"))
KILLS = int(os.environ.get("TRAINJOB_TEST_KILLS_INSIDE", "4"))
SEED = os.environ.get("TRAINJOB_TEST_KILLS_INSIDE_SEED", "1")
LIMIT_S = 500 + 60 * KILLS
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S + 30)]

MODEL_CHECKPOINT = """
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob.lightning import ReportCallback, TrainJobDDPStrategy, prepare_trainer


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

    def training_step(self, batch, number):
        loss = ((self.net(batch[0]) - 2 * batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


trainjob.enable_reproducibility(seed=1)
files = pl.callbacks.ModelCheckpoint(dirpath="models", every_n_train_steps=4, save_top_k=2, monitor="loss", save_last=True)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
callbacks = [files, ReportCallback(every_n_train_steps=4)]
trainer = pl.Trainer(max_epochs=2, strategy=TrainJobDDPStrategy(), callbacks=callbacks, **quiet)
rows = DataLoader(TensorDataset(torch.linspace(-1, 1, 120)[:, None]), 4, shuffle=True)
prepare_trainer(trainer).fit(Line(), rows, ckpt_path="auto")
"""
TRANSFORMERS = (
    str(ROOT / "examples" / "transformers" / "train.py"),
    *("--steps", "16", "--save-every", "4", "--output", "out"),
)
DEEPSPEED = (str(ROOT / "examples" / "deepspeed" / "train.py"), *("--steps", "16", "--save-every", "4", "--stage", "2"))

ORBAX = (str(ROOT / "examples" / "orbax" / "train.py"), *("--steps", "16", "--save-every", "4"))

CASES = {
    "lightning": (
        "lightning.pytorch.trainer.trainer:Trainer.save_checkpoint",
        "lightning.pytorch.trainer.connectors.checkpoint_connector:_CheckpointConnector._restore_modules_and_callbacks",
        ("model.py",),
    ),
    "accelerate": (
        "transformers.trainer:Trainer._save_checkpoint",
        "transformers.trainer:Trainer._load_from_checkpoint",
        TRANSFORMERS,
    ),
    "deepspeed": (
        "deepspeed.runtime.engine:DeepSpeedEngine.save_checkpoint",
        "deepspeed.runtime.engine:DeepSpeedEngine.load_checkpoint",
        DEEPSPEED,
    ),
    "orbax": ("trainjob.orbax:save", "trainjob.orbax:load", ORBAX),
}
"""By the library: what saves, what loads, and what is run."""


def run(here: Path, kills: int, calls: int, library: str) -> str:
    """What is shown."""
    saves, loads, script = CASES[library]
    here.mkdir()
    (here / "model.py").write_text(MODEL_CHECKPOINT)
    job = ["--workers", "2", "--name", "job", "--storage", str(here), "--max-failures", str(KILLS + 1)]
    words = ["run", INSIDE, *job, "--", SEED, str(kills), str(calls), saves, loads, *script]
    return said(["-m", "trainjob.cli.main", *words], here, limit_s=LIMIT_S)


def losses(here: Path) -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"].get("loss") for row in Result.from_path(str(here / "default" / "job")).rows}


@pytest.mark.parametrize("library", CASES)
def test_kills_inside_saving_and_loading_leave_no_torn_checkpoint(tmp_path: Path, library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    plain = run(tmp_path / "plain", 0, 1, library)
    made = [int(found) for found in re.findall(r"makes (\d+) calls", plain)]
    assert made, plain
    shown = run(tmp_path / "struck", KILLS, max(made), library)
    assert f"with {KILLS + 1} attempts" in shown, shown
    expected = losses(tmp_path / "plain")
    assert len(expected) >= 4 and None not in expected.values()
    assert losses(tmp_path / "struck") == expected, shown
