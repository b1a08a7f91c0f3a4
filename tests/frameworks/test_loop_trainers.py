"""LightningTrainer and TransformersTrainer: a killed rank changes nothing, and the loop is the framework's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from support.spoken import said
from trainjob import LightningTrainer, Result, TransformersTrainer
from trainjob.launch.errors import ConfigError

LIMIT_S = 500
HEAD = """
import os, signal, torch, trainjob
from trainjob import FailureConfig, LightningTrainer, RunConfig, ScalingConfig, TransformersTrainer

def strike(step, at):
    context = trainjob.get_context()
    if (context.rank, context.attempt, step) == (1, 1, at):
        os.kill(os.getpid(), signal.SIGKILL)

def given():
    return {
        "scaling_config": ScalingConfig(num_workers=2),
        "run_config": RunConfig(name="job", storage_path=".", failure_config=FailureConfig(max_failures=1)),
    }
"""
LIGHTNING = """
import lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset

class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        strike(self.global_step, 7)
        loss = ((self.net(batch[0]) - 2 * batch[0]) ** 2).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Points(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.linspace(-1, 1, 40)[:, None]), 4)

if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = LightningTrainer(
        MODULE, DATA, trainer_config={"max_epochs": 2, **quiet}, every_n_train_steps=3, **given()
    )
    print("came back:", sorted(trainer.fit().return_value))
"""
TRANSFORMERS = """
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Counting(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        row = (torch.arange(8) + index) % 16
        return {"input_ids": row, "labels": row}

class Strike(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        strike(state.global_step, 5)

def make_trainer(config):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    arguments = TrainingArguments("out", save_steps=2, logging_steps=1, report_to=[], disable_tqdm=True, **config)
    return Trainer(model, arguments, train_dataset=Counting(), callbacks=[Strike()])

if __name__ == "__main__":
    trainer = TransformersTrainer(make_trainer, config={"max_steps": 8}, **given())
    print("came back:", "train_loss" in trainer.fit().return_value)
"""


def came_of(text: str, here: Path) -> tuple[str, Result]:
    (here / "main.py").write_text(HEAD + text)
    shown = said(["main.py"], here, limit_s=LIMIT_S)
    return shown, Result.from_path(str(here / "default" / "job"))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed: make test-frameworks")
@pytest.mark.parametrize(("module", "data"), [("Line()", "Points()"), ("Line", "lambda: Points().train_dataloader()")])
def test_a_lightning_module_is_trained_to_its_end(tmp_path: Path, module: str, data: str) -> None:
    shown, result = came_of(LIGHTNING.replace("MODULE", module).replace("DATA", data), tmp_path)
    assert "came back: ['loss']" in shown
    # Five steps an epoch: reports at 3, at its end, 6, 9 and its end; step 7 is done again.
    assert [(row["step"], row["attempt"]) for row in result.rows] == [(3, 1), (5, 1), (6, 1), (9, 2), (10, 2)], shown


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_transformers_trainer_is_trained_to_its_end(tmp_path: Path) -> None:
    shown, result = came_of(TRANSFORMERS, tmp_path)
    assert "came back: True" in shown
    assert [(row["step"], row["attempt"]) for row in result.rows if row["checkpoint"]] == [
        (2, 1), (4, 1), (6, 2), (8, 2)
    ], shown  # fmt: skip


CALLBACK = (
    TRANSFORMERS.partition("if __name__")[0].replace("[Strike()]", "[Strike(), TrainJobCallback()]")
    + """
trainer = make_trainer({"max_steps": 8})
trainer.train(resume_from_checkpoint=RESUME) if RESUME else trainer.train()
"""
)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("resume", ["None", "True"])
def test_a_callback_alone_reports_and_resumes(tmp_path: Path, resume: str) -> None:
    head = HEAD + "from trainjob.huggingface import TrainJobCallback\n"
    (tmp_path / "main.py").write_text(head + CALLBACK.replace("RESUME", resume))
    words = ["-m", "trainjob.cli.main", "run", "main.py", "--workers", "2", "--name", "job", "--storage", "."]
    shown = said([*words, "--max-failures", "1"], tmp_path, limit_s=LIMIT_S)
    assert [(row["step"], row["attempt"]) for row in Result.from_path(str(tmp_path / "default" / "job")).rows if row["checkpoint"]] == [
        (2, 1), (4, 1), (6, 2), (8, 2)
    ], shown  # fmt: skip


BEST = """
import shutil
class Gone(Strike):
    def on_step_begin(self, args, state, control, **given):
        if trainjob.get_context().attempt == 1 and state.global_step == 7:
            trainjob.barrier()
            shutil.rmtree("out", ignore_errors=True)  # as on another machine
            strike(1, 1 if trainjob.get_context().rank == 1 else 0)

evaluated = {"eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 2, "max_steps": 10}
best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
trainer = make_trainer({**evaluated, **best})
trainer.callback_handler.callbacks = [one for one in trainer.callback_handler.callbacks if type(one) is not Strike]
trainer.add_callback(Gone())
trainer.train()
values = {row["step"]: row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row}
print("best:", trainer.state.best_global_step, sorted(values), trainer.evaluate()["eval_loss"] == values[2], flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_best_model_is_found_at_the_end_though_its_machine_is_gone(tmp_path: Path) -> None:
    """Its losses fall: the first checkpoint is the best by a metric that asks for the greatest."""
    text = (
        CALLBACK.partition("trainer = ")[0].replace("train_dataset=", "eval_dataset=Counting(), train_dataset=") + BEST
    )
    (tmp_path / "main.py").write_text(HEAD + "from trainjob.huggingface import TrainJobCallback\n" + text)
    words = ["-m", "trainjob.cli.main", "run", "main.py", "--workers", "2", "--name", "job", "--storage", "."]
    shown = said([*words, "--max-failures", "1"], tmp_path, limit_s=LIMIT_S)
    assert "2 attempts" in shown and "best: 2 [2, 4, 6, 8, 10] True" in shown, shown


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed: make test-frameworks")
def test_a_trainer_of_lightning_with_nothing_of_ours_is_told_that_its_ranks_train_apart(tmp_path: Path) -> None:
    loop = LIGHTNING.partition("if __name__")[0] + "pl.Trainer(max_epochs=1, logger=False).fit(Line(), Points())\n"
    (tmp_path / "main.py").write_text(HEAD + loop.replace("strike(self.global_step, 7)", "pass"))
    words = ["-m", "trainjob.cli.main", "run", "main.py", "--workers", "2", "--name", "job", "--storage", "."]
    shown = said(words, tmp_path, limit_s=LIMIT_S)
    assert shown.count("The ranks train apart: the job has 2 ranks, and Lightning counts 1") == 1, shown


def test_what_cannot_be_is_refused_in_the_launcher() -> None:
    with pytest.raises(ConfigError, match="strategy"):
        LightningTrainer(object(), strategy="tpu")
    with pytest.raises(ConfigError, match="leave strategy out"):
        LightningTrainer(object(), trainer_config={"strategy": "ddp"})
    with pytest.raises(ConfigError, match="make_trainer"):
        TransformersTrainer("model")  # type: ignore[arg-type]
