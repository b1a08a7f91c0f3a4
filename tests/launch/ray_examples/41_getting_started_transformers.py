import os

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
import ray.train.huggingface.transformers
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"input_ids": torch.arange(8), "attention_mask": torch.ones(8, dtype=torch.long), "labels": torch.tensor(i % 2)}


def train_func():
    model = BertForSequenceClassification(
        BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=16)
    )

    def compute_metrics(eval_pred):
        logits, labels = eval_pred
        return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}

    training_args = TrainingArguments(
        output_dir="test_trainer", eval_strategy="epoch", save_strategy="epoch", report_to="none", num_train_epochs=2,
        per_device_train_batch_size=4, use_cpu=True, logging_strategy="epoch",
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=Data(), eval_dataset=Data(), compute_metrics=compute_metrics)
    callback = ray.train.huggingface.transformers.RayTrainReportCallback()
    trainer.add_callback(callback)
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    trainer.train()


ray_trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2, use_gpu=False))
result: ray.train.Result = ray_trainer.fit()
with result.checkpoint.as_directory() as checkpoint_dir:
    checkpoint_path = os.path.join(checkpoint_dir, ray.train.huggingface.transformers.RayTrainReportCallback.CHECKPOINT_NAME)
    model = BertForSequenceClassification.from_pretrained(checkpoint_path)
