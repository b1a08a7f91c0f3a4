"""A transformers.Trainer on the job's ranks, with Ray's callback; all ranks' files are in each checkpoint."""

import os
import sys

import torch
from trainjob.compat.ray.train import RunConfig, ScalingConfig
from trainjob.compat.ray.train.torch import TorchTrainer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from trainjob.compat import ray


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"input_ids": torch.full((4,), index), "labels": torch.tensor(index % 2)}


def train(config):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    trainer = Trainer(
        model=BertForSequenceClassification(BertConfig(vocab_size=20, **small)),
        args=TrainingArguments(
            output_dir=config["output"],
            num_train_epochs=2,
            per_device_train_batch_size=4,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Rows(),
        eval_dataset=Rows(),
    )
    trainer.add_callback(ray.train.huggingface.transformers.RayTrainReportCallback())
    ray.train.huggingface.transformers.prepare_trainer(trainer).train()


if __name__ == "__main__":
    output = os.path.join(sys.argv[1], "output")
    result = TorchTrainer(
        train,
        train_loop_config={"output": output},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="bert", storage_path=sys.argv[1]),
    ).fit()
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [2, 4]
    assert result.metrics["eval_loss"] > 0
    wanted = {f"checkpoint/{name}" for name in ("model.safetensors", "rng_state_0.pth", "rng_state_1.pth")}
    assert wanted <= set(result.checkpoint.files()), result.checkpoint.files()
    assert sorted(os.listdir(output)) == ["checkpoint-2", "checkpoint-4"], "the Trainer's own are as they were"
