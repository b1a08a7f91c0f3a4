"""Hugging Face Transformers on several ranks: a small GPT-2 learns to count, with its Trainer's own checkpoints.

    tj run examples/transformers/train.py --workers 2 --name counting

Nothing is downloaded: the model is made on the spot, and a token is a number.
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from trainjob.huggingface import prepare_trainer

NUMBERS = 40


class Counting(Dataset):
    """`count` rows of twelve numbers, each one more than the one before."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        row = (torch.arange(12) + index * 7) % NUMBERS
        return {"input_ids": row, "labels": row}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--output", default="counting-output")
given = parser.parse_args()

torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=NUMBERS, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    given.output,
    max_steps=given.steps,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    logging_steps=given.save_every,
    eval_strategy="steps",
    eval_steps=given.save_every,
    save_steps=given.save_every,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Counting(400), eval_dataset=Counting(40))
prepare_trainer(trainer).train()  # each checkpoint is the job's; a restart resumes from the newest
