"""A small GPT-2 is fine-tuned with LoRA by trl's SFTTrainer: only the adapter is trained, and saved.

    tj run examples/trl/train.py --workers 2 --name tuned

Nothing is downloaded: the model is made on the spot, and a token is a number.
"""

import argparse

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from trainjob.huggingface import prepare_trainer

NUMBERS = 40
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--output", default="tuned-output")
given = parser.parse_args()

words = {str(number): number for number in range(NUMBERS)} | {"<end>": NUMBERS}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
rows = [{"text": " ".join(str((first + at) % NUMBERS) for at in range(12))} for first in range(400)]

torch.manual_seed(1)
shape = {"vocab_size": NUMBERS + 1, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=NUMBERS, eos_token_id=NUMBERS))
arguments = SFTConfig(
    given.output,
    max_steps=given.steps,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    bf16=torch.cuda.is_available(),  # trl's own choice is True, which fails without a GPU
    max_length=16,
    logging_steps=given.save_every,
    save_steps=given.save_every,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
)
adapter = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM")
data = Dataset.from_list(rows)
trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, peft_config=adapter)
prepare_trainer(trainer).train()  # each checkpoint is the job's; a restart resumes from the newest
