"""The training function of train.ipynb as what each rank of a job runs: for trainjob.yaml, and for

    tj run examples/notebook/train.py --workers 2

The function stays in the notebook alone: its first cell with code defines `train(config)`.
"""

import json
from pathlib import Path

import torch

import trainjob

CONFIG = {"width": 32, "lr": 1e-2, "epochs": 15}


def load():
    """`train` of the notebook beside this file."""
    path = Path(__file__).with_name("train.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = {"__name__": "notebook"}
    exec(compile(source, str(path), "exec"), names)
    return names["train"]


if __name__ == "__main__":
    trainjob.init_process_group()
    load()(CONFIG)
    torch.distributed.destroy_process_group()
