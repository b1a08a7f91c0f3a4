"""The loop of `steps.py` by Hugging Face's Trainer, which notes each finished step in the same way; `alone`: the
Trainer by itself, as under torchrun.

Arguments: the file to note in; then `alone` or `ours`, the number of steps, and the width of the model, if steps are
timed: by this process's processor time, which other work on the machine hardly changes.
"""

import os
import sys
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SAVE_EVERY = int(os.environ.get("STEPS_SAVE_EVERY", "50"))


class Counting(Dataset):
    def __len__(self):
        return 8 * 10000

    def __getitem__(self, index):
        row = (torch.arange(12) + index) % 40
        return {"input_ids": row, "labels": row}


class Notes(TrainerCallback):
    def __init__(self, path, pause_s, clock):
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._attempt = int(os.environ.get("TRAINJOB_ATTEMPT", "1"))
        self._pause_s = pause_s

    def on_train_begin(self, args, state, control, **_):
        self._first = state.global_step

    def on_step_end(self, args, state, control, **_):
        step = state.global_step - self._first
        said = f"{args.process_index} {os.getpid()} {self._attempt} {step} {self._clock():.6f}\n"
        os.write(self._file, said.encode())
        time.sleep(self._pause_s)


def main(notes, alone="", steps="1000000", width="32"):
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=int(width), n_layer=2, n_head=2))
    arguments = TrainingArguments(
        f"{notes}-saved",
        max_steps=int(steps),
        per_device_train_batch_size=8,
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    notes_each = Notes(notes, 0.0, time.process_time) if alone else Notes(notes, 0.005, time.time)
    trainer = Trainer(model, arguments, train_dataset=Counting(), callbacks=[notes_each])
    if alone != "alone":
        from trainjob.huggingface import prepare_trainer

        trainer = prepare_trainer(trainer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
