"""Lightning's strategies of which each rank keeps a part of the model: torch's FSDP and FSDP2 on CPUs. A killed rank
changes no number, another number of ranks sees what is left of the epoch, each sample once, and each rank reads its own
copy of a checkpoint.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.spoken import said
from trainjob import Result

LIMIT_S = 500
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed: make test-frameworks"),
]

SCRIPT = """
import os, signal, sys
import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import trainjob
from trainjob import lightning as tl

kind, strike = sys.argv[1], int(sys.argv[2])
context = trainjob.get_context()


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def configure_model(self):
        if kind.startswith("fsdp2"):
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, number):
        if (context.attempt, context.rank, self.global_step) == (1, 1, strike):
            os.kill(os.getpid(), signal.SIGKILL)
        print("saw", self.global_step, batch[0].flatten().tolist(), flush=True)
        loss = ((self.net(batch[0]) - 2 * batch[0]) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


strategy = {
    "ddp": lambda: tl.TrainJobDDPStrategy(),
    "fsdp": lambda: tl.TrainJobFSDPStrategy(state_dict_type="sharded", auto_wrap_policy={torch.nn.Linear}),
    "fsdp-full": lambda: tl.TrainJobFSDPStrategy(),
    "fsdp2": lambda: tl.TrainJobModelParallelStrategy(tensor_parallel_size=1),
    "fsdp2-full": lambda: tl.TrainJobModelParallelStrategy(tensor_parallel_size=1, save_distributed_checkpoint=False),
}[kind]()
trainjob.enable_reproducibility(seed=1)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
callbacks = [tl.ReportCallback(every_n_train_steps=4)]
trainer = pl.Trainer(max_epochs=2, strategy=strategy, callbacks=callbacks, **quiet)
rows = DataLoader(TensorDataset(torch.linspace(-1, 1, 80)[:, None]), 4, shuffle=True)
tl.prepare_trainer(trainer)
mine = tl.load_path()
if mine is not None:
    def look(event, arguments):
        if event == "open" and arguments[1] == "r" and "checkpoint.ckpt" in str(arguments[0]):
            print("reads", "its own" if str(arguments[0]).startswith(mine) else arguments[0], flush=True)
    sys.addaudithook(look)
trainer.fit(Line(), rows, ckpt_path=mine)
if kind != "ddp" and context.world_size > 1:
    model = trainer.strategy.model
    held = sum(getattr(each, "to_local", lambda: each)().numel() for each in model.parameters())
    print("holds", held, "of 25", flush=True)
"""


def run(here: Path, name: str, kind: str, strike: int, *options: str, workers: int = 2) -> str:
    """What is shown."""
    (here / "train.py").write_text(SCRIPT)
    job = ["--workers", str(workers), "--name", name, "--storage", str(here), "--prefork", "Never", *options]
    return said(["-m", "trainjob.cli.main", "run", "train.py", *job, "--", kind, str(strike)], here, limit_s=LIMIT_S)


def losses(here: Path, name: str) -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


def seen(shown: str, since: int) -> list[float]:
    """The samples of all ranks, from a step on."""
    batches = re.findall(r"saw (\d+) \[(.*?)\]", shown)
    return sorted(float(one) for step, batch in batches if int(step) >= since for one in batch.split(","))


@pytest.mark.parametrize("kind", ["fsdp", "fsdp2", "fsdp2-full"])
def test_a_killed_rank_changes_no_number(tmp_path: Path, kind: str) -> None:
    shown = run(tmp_path, "plain", kind, -1)
    held = [int(one) for one in re.findall(r"holds (\d+) of 25", shown)]
    assert len(held) == 2 and sum(held) == 25 and max(held) < 25, "each rank has a part"
    # Ten steps an epoch: rank 1 is gone in the fourth step of the second one.
    shown = run(tmp_path, "struck", kind, 13)
    assert "attempt 2 resumes from checkpoint 1-1-4" in shown, shown
    expected = losses(tmp_path, "plain")
    assert sorted(expected) == [4, 8, 10, 12, 16, 20]
    assert losses(tmp_path, "struck") == expected


@pytest.mark.parametrize(("kind", "workers"), [("fsdp", 1), ("fsdp2", 4), ("ddp", 4), ("ddp", 1)])
def test_another_number_of_ranks_sees_the_rest_of_the_epoch(tmp_path: Path, kind: str, workers: int) -> None:
    plain = run(tmp_path, "plain", kind, -1)
    from_there = str(tmp_path / "default" / "plain" / "checkpoints" / "1-1-4")  # step 12, the second of the epoch
    other = run(tmp_path, "other", kind, -1, "--resume-from", from_there, workers=workers)
    rest = seen(plain, 12)
    assert len(rest) == 64
    assert seen(other, 12) == rest
    steps = losses(tmp_path, "other")
    assert max(steps) == 12 + 64 // (4 * workers) and min(steps) > 12
    assert steps[max(steps)] < losses(tmp_path, "plain")[12]


def test_each_rank_reads_its_own_copy(tmp_path: Path) -> None:
    """On another machine there is no path of rank 0's."""
    for kind in ("fsdp2", "fsdp2-full"):
        shown = run(tmp_path, kind, kind, 13)
        reads = re.findall(r"r\d+ \| reads (.*)", shown)
        assert set(re.findall(r"(r\d+) \| reads", shown)) == {"r00", "r01"}, shown
        assert set(reads) == {"its own"}, shown


def test_a_whole_state_of_fsdp_on_cpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"use TrainJobFSDPStrategy\(state_dict_type='sharded'\)"):
        run(tmp_path, "full", "fsdp-full", -1, "--max-failures", "0")
