"""Hugging Face Transformers: its Trainer (and those built on it, such as trl's) as the ranks of a TrainJob.

`ReportCallback` makes each checkpoint that the Trainer saves the job's; `prepare_trainer` adds it and resumes, and so
does a `TrainJobCallback` by itself.
Accelerate alone needs nothing of this module: see docs/frameworks.md.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from typing import Any, Dict, Iterable, Optional

from trainjob.integrations.links import link_or_copy
from trainjob.integrations.needed import missing
from trainjob.integrations.places import STATE, place
from trainjob.integrations.wishes import Wishes
from trainjob.session import calls
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import TrainJobError
from trainjob.session.reported import get_all_reported_checkpoints

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing("transformers", "transformers>=5", error) from error

__all__ = ["ReportCallback", "TrainJobCallback", "load_path", "prepare_trainer"]

FOLDER = "checkpoint"
"""The Trainer's `checkpoint-N` inside the checkpoint, as Ray Train names it."""
AUTO = "auto"


class ReportCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports each checkpoint that the Trainer saves, with the newest value of each of its metrics; what it logs is
    logged at once.

    When and how often is the Trainer's: `save_strategy`, `save_steps`, `eval_strategy`, `save_total_limit`,
    `load_best_model_at_end`. Its own folders stay where they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._wishes = Wishes()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A planned change (another size, a restart, a suspension) that waits for a checkpoint gets one."""
        if self._wishes.heard():
            control.should_save = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Refuses a Trainer whose ranks would train alone."""
        check_size(args)

    def on_log(self, args: Any, state: Any, control: Any, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
        """Rank 0's numbers, at their step."""
        row = _numbers((logs or {},))
        if row and state.is_world_process_zero:
            calls.log(row, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """On all ranks, after the Trainer has written its folder."""
        source = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        metrics = _numbers(state.log_history)
        metrics.update(step=state.global_step, epoch=state.epoch or 0.0)
        calls.barrier()  # each rank writes its random numbers into the folder that another one brings
        with tempfile.TemporaryDirectory() as folder:
            brings = calls.get_context().local_rank == 0 and os.path.isdir(source)
            if brings:
                # The Trainer may rotate its folder away while ours is still on its way: links hold the files.
                shutil.copytree(source, os.path.join(folder, FOLDER), copy_function=link_or_copy)
            calls.report(
                metrics,
                checkpoint=Checkpoint.from_directory(folder) if brings else None,
                delete_local_checkpoint_after_upload=False,
                step=state.global_step,
                total_steps=state.max_steps,
            )


class TrainJobCallback(ReportCallback):
    """`prepare_trainer` as a callback: a Trainer that is made with it reports its checkpoints, and its `train()`
    resumes from the job's newest one. Nothing else of the script changes.
    """

    def __init__(self) -> None:
        super().__init__()
        _let_trainers_resume()


def _let_trainers_resume() -> None:
    """Of those that have a TrainJobCallback: a callback is not told which Trainer it is given to."""
    from transformers import Trainer

    plain_train = Trainer.train
    if getattr(plain_train, "resumes", False):
        return

    @functools.wraps(plain_train)
    def train(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(callback, TrainJobCallback) for callback in trainer.callback_handler.callbacks):
            resume_from_checkpoint = _start(trainer, resume_from_checkpoint)
        return plain_train(trainer, resume_from_checkpoint, *args, **kwargs)

    train.resumes = True  # type: ignore[attr-defined]
    setattr(Trainer, "train", train)  # noqa: B010  # to a type checker it is a method


def _start(trainer: Any, wished: Any) -> Any:
    """What `train(resume_from_checkpoint=wished)` resumes from."""
    return load_path(trainer.args.output_dir) if wished in (AUTO, True, None) else wished


def check_size(args: Any) -> None:
    """Raises TrainJobError where the ranks of these TrainingArguments are not the job's."""
    ranks = calls.get_context().world_size
    if args.world_size != ranks:
        raise TrainJobError(
            f"the job has {ranks} ranks, and the Trainer counts {args.world_size}: each would train on all the data "
            "alone. Make TrainingArguments inside the ranks; on a machine with GPUs that the job does not use, with "
            "use_cpu=True."
        )


def prepare_trainer(trainer: Any) -> Any:
    """The same Trainer, with ReportCallback, whose `train()` resumes from the job's newest checkpoint.

    `train(resume_from_checkpoint=...)`: absent, `"auto"` or True take the job's checkpoint, and begin where there is
    none; False begins; a path is taken as it is. The checkpoint is put into `output_dir` as the Trainer names it, and
    so is its best one, so that `load_best_model_at_end` and `save_total_limit` find them on a new machine too.
    """
    if not any(isinstance(callback, ReportCallback) for callback in trainer.callback_handler.callbacks):
        trainer.add_callback(ReportCallback())
    plain_train = trainer.train

    @functools.wraps(plain_train)
    def train(resume_from_checkpoint: Any = AUTO, *args: Any, **kwargs: Any) -> Any:
        return plain_train(_start(trainer, resume_from_checkpoint), *args, **kwargs)

    if not getattr(plain_train, "resumes", False):
        train.resumes = True  # type: ignore[attr-defined]
        trainer.train = train
    return trainer


def load_path(output_dir: str) -> Optional[str]:
    """The folder of the newest checkpoint for `train(resume_from_checkpoint=...)`, in `output_dir` on each machine;
    None: the training begins. Every rank calls it.
    """
    checkpoint = calls.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        source = os.path.join(folder, FOLDER)
        if not os.path.isfile(os.path.join(source, STATE)):
            raise TrainJobError(
                f"the checkpoint {checkpoint.path} holds no {FOLDER}/{STATE}: it was not reported by ReportCallback. "
                "Load it yourself, or start the job under another name."
            )
        with open(os.path.join(source, STATE), encoding="utf-8") as file:
            state = json.load(file)
        target = os.path.join(output_dir, f"checkpoint-{state['global_step']}")
        if calls.get_context().local_rank == 0:
            place(source, target)
            _place_best(state, output_dir)
    calls.barrier()
    return target


def _place_best(state: Dict[str, Any], output_dir: str) -> None:
    """What the state calls the best one, if the job still has it."""
    best = state.get("best_global_step")
    if not best or os.path.isdir(os.path.join(output_dir, f"checkpoint-{best}")):
        return
    for reported in get_all_reported_checkpoints(timeout_s=0):
        if reported.metrics.get("step") == best:
            with reported.checkpoint.as_directory() as folder:
                place(os.path.join(folder, FOLDER), os.path.join(output_dir, f"checkpoint-{best}"))


def _numbers(rows: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
    """The newest value of each name."""
    found: Dict[str, Any] = {}
    for row in rows:
        found.update({name: value for name, value in row.items() if isinstance(value, (int, float))})
    return {name: value for name, value in found.items() if name not in ("step", "epoch")}
