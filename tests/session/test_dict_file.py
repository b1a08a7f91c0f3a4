"""Equal content is equal bytes, in any process; plain pickle reads them."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob import Checkpoint

SAVE = """
import hashlib, sys, torch
from trainjob import Checkpoint
torch.manual_seed(3)
kept = [torch.zeros(size) for size in range(int(sys.argv[1]))]  # other addresses in each process
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
half = torch.arange(4.0).bfloat16()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "module": model, "view": half[1:3], "epoch": 3}
checkpoint = Checkpoint.from_dict(state)
back = checkpoint.to_dict()
assert back["view"].tolist() == [1.0, 2.0] and back["view"].dtype is torch.bfloat16
assert torch.equal(back["model"]["weight"], model.weight)
assert back["module"](torch.ones(1, 4)).requires_grad
print(hashlib.sha256(checkpoint.open("checkpoint.pkl").read()).hexdigest())
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_for_the_same_tensors() -> None:
    said = [
        subprocess.run([sys.executable, "-c", SAVE, str(n)], capture_output=True, text=True, check=False)
        for n in (0, 7)
    ]
    assert said[0].stdout, said[0].stderr
    assert said[0].stdout == said[1].stdout


def test_plain_pickle_reads_what_has_no_tensors(tmp_path: Path) -> None:
    data = {"epoch": 3, "names": ["a", "b"], "nested": {"x": 1.5}}
    folder = Path(Checkpoint.from_dict(data).to_directory(str(tmp_path / "copy")))
    body = (folder / "checkpoint.pkl").read_bytes()
    assert pickle.loads(body) == data
    again = Path(Checkpoint.from_dict(dict(data)).to_directory(str(tmp_path / "again"))) / "checkpoint.pkl"
    assert hashlib.sha256(body).digest() == hashlib.sha256(again.read_bytes()).digest()
