import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = (torch.arange(8) + index) % 16
        return {"input_ids": row, "labels": row}


model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
arguments = TrainingArguments("out", max_steps=6, save_steps=3, report_to=[], use_cpu=True)
trainer = Trainer(model, arguments, train_dataset=Rows())
trainer.train()
