"""Folders in the formats that people save in pass through a real job and its storage byte for byte, and their
libraries read what comes back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.patience import HANG_S
from trainjob import Checkpoint

pytestmark = pytest.mark.xdist_group("formats")  # what its tests share is made once
ROOT = Path(__file__).parents[2]
SCRIPT = """
import shutil, sys, tempfile
import trainjob

folder = tempfile.mkdtemp()
shutil.copytree(sys.argv[1], folder, dirs_exist_ok=True)
trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder))
found = trainjob.get_checkpoint()
for name in found.files():
    with found.open(name) as ours, open(sys.argv[1] + "/" + name, "rb") as given:
        assert ours.read() == given.read(), name
print("files", len(found.files()))
"""
STATE = {
    "weights": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "view": torch.arange(10)[::2],
    "nested": {"steps": 3, "flags": [True, None], "scalar": torch.tensor(2.5)},
}
TENSORS = {"a": torch.arange(12, dtype=torch.float32).reshape(3, 4), "b": torch.tensor([1, 2], dtype=torch.int64)}
TYPES = {torch.float32: "F32", torch.int64: "I64"}


def safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """A safetensors file: the length of the header in 8 bytes, the header in JSON, then the tensors' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(folder: Path) -> None:
    """torch.save, safetensors, and a folder as Hugging Face's Trainer leaves it."""
    files: dict[str, bytes] = {
        "model.safetensors": safetensors(TENSORS),
        "checkpoint-500/config.json": b'{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": '
        b'16, "n_positions": 8}',
        "checkpoint-500/model-00001-of-00002.safetensors": safetensors({"a": TENSORS["a"]}),
        "checkpoint-500/model-00002-of-00002.safetensors": safetensors({"b": TENSORS["b"]}),
        "checkpoint-500/model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
        "checkpoint-500/trainer_state.json": b'{"global_step": 500}',
        "checkpoint-500/tokenizer/vocab.txt": "w\u00f6rter\n".encode(),
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "empty": b"",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    torch.save(STATE, folder / "model.pt")


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checkpoint]:
    """What was given to report() by one rank, and the committed checkpoint."""
    here = tmp_path_factory.mktemp("formats")
    write(here / "given")
    (here / "train.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "trainjob.cli",
        "run",
        "train.py",
        "--name",
        "formats",
        "--storage",
        "store",
        "--plain",
        "--",
        str(here / "given"),
    ]
    done = subprocess.run(
        command, cwd=here, env={**os.environ, "HOME": str(here)}, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return here / "given", Checkpoint(str(here / "store" / "default" / "formats" / "checkpoints" / "1-1-1"))


def test_every_file_is_what_it_was(restored: tuple[Path, Checkpoint]) -> None:
    given, checkpoint = restored
    names = sorted(str(path.relative_to(given)) for path in given.rglob("*") if path.is_file())
    assert checkpoint.files() == names and len(names) == 10
    for name in names:
        with checkpoint.open(name) as file:
            assert file.read() == (given / name).read_bytes(), name


def test_torch_reads_its_own(restored: tuple[Path, Checkpoint]) -> None:
    with restored[1].open("model.pt") as file:
        loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["weights"], STATE["weights"]) and torch.equal(loaded["view"], STATE["view"])
    assert loaded["nested"]["steps"] == 3 and loaded["nested"]["flags"] == [True, None]


def test_safetensors_reads_its_own(restored: tuple[Path, Checkpoint]) -> None:
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    with restored[1].as_directory() as folder:
        loaded = library.load_file(os.path.join(folder, "model.safetensors"))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def test_transformers_reads_its_own(restored: tuple[Path, Checkpoint]) -> None:
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    with restored[1].as_directory() as folder:
        assert library.AutoConfig.from_pretrained(os.path.join(folder, "checkpoint-500")).n_embd == 8
