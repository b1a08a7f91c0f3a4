import tempfile
import os
import shutil

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerCallback

import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer


class MyTrainReportCallback(TrainerCallback):
    def __init__(self):
        super().__init__()
        self.metrics = {}

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        self.metrics.update(logs)

    def on_save(self, args, state, control, **kwargs):
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            checkpoint_path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            checkpoint = Checkpoint.from_directory(checkpoint_path)
        ray.train.report(metrics={k: v for k, v in self.metrics.items()}, checkpoint=checkpoint)
        self.metrics = {}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"input_ids": torch.arange(8), "attention_mask": torch.ones(8, dtype=torch.long), "labels": torch.tensor(i % 2)}


def train_func(config):
    model = BertForSequenceClassification(
        BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=16)
    )
    args = TrainingArguments(
        output_dir=os.path.join(tempfile.gettempdir(), "out"), num_train_epochs=1, per_device_train_batch_size=4, use_cpu=True,
        save_strategy="epoch", logging_strategy="epoch", report_to="none",
    )
    trainer = Trainer(model=model, args=args, train_dataset=Data())
    trainer.add_callback(MyTrainReportCallback())
    trainer.train()


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.checkpoint
