"""Equal content is equal bytes, in any process; plain pickle reads them."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob import Checkpoint
from trainjob.cli.checkpoints import weights

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


KINDS = """
import pickle, resource, sys, warnings
import torch
from trainjob import Checkpoint

warnings.simplefilter("ignore")
base = torch.arange(10.0)
linear = torch.nn.Linear(3, 4)
state = {
    "base": base, "view": base[2:5], "column": torch.ones(4, 6).T[1], "empty": torch.empty(0), "scalar": torch.tensor(3),
    "weight": linear.weight, "tied": {"again": linear.weight}, "turned": linear.weight.detach().T,
    "complex": torch.ones(2, dtype=torch.complex64).conj(), "negative": torch.ones(2, dtype=torch.complex64).conj().imag,
    "bool": torch.tensor([True, False]), "sparse": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(),
    "buffer": torch.nn.Buffer(torch.ones(3)), "grad": torch.ones(2, requires_grad=True), "nothing": torch.empty(2, 0),
}
for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.uint16, torch.int64):
    state[str(dtype)] = torch.arange(5).to(dtype)

def plain(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (tensor.to_dense() if tensor.layout is not torch.strided else tensor).to(torch.complex128)

checkpoint = Checkpoint.from_dict({**state, "meta": torch.empty(3, device="meta"), "storage": base.untyped_storage()})
back = checkpoint.to_dict()
assert back.pop("meta").device.type == "meta" and len(back.pop("storage")) == 40
for name, tensor in state.items():
    found, tensor = (back[name]["again"], tensor["again"]) if name == "tied" else (back[name], tensor)
    same = (type(found), found.dtype, found.shape, found.layout, found.requires_grad)
    assert same == (type(tensor), tensor.dtype, tensor.shape, tensor.layout, tensor.requires_grad), name
    assert torch.equal(plain(found), plain(tensor)), name
    if tensor.layout is torch.strided:
        assert found.stride() == tensor.stride(), name
back["base"][3] = 99
assert back["view"][1] == 99 and base[3] == 3, "views of one memory are that again, and another's"
with torch.no_grad():
    back["weight"][0, 1] = 7
assert back["tied"]["again"] is back["weight"] and back["turned"][1, 0] == 7

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

MIB = 256
large = {str(number): torch.ones(MIB << 16) for number in range(4)}
large["again"] = large["0"].view(-1, 16)[1:]
before = peak()
checkpoint = Checkpoint.from_dict(large)
written = peak()
back = checkpoint.to_dict()
read = peak()
print(written - before, read - written, len(checkpoint.open("checkpoint.pkl").read()) >> 20)
"""


@pytest.mark.slow
def test_every_kind_of_tensor_comes_back_and_memory_is_neither_copied_nor_written_twice() -> None:
    done = subprocess.run([sys.executable, "-c", KINDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    more_to_write, more_to_read, size = map(int, done.stdout.split())
    assert size == 256, "MiB, with a view of a part of it"
    assert more_to_write < 64 and more_to_read < 256 + 64


OLD = """
import io, pickle, sys, torch

def memory(storage):
    body = io.BytesIO()
    torch.save(storage, body)
    return torch.storage._load_from_bytes, (body.getvalue(),)

class Pickler(pickle.Pickler):
    def reducer_override(self, value):
        return memory(value) if isinstance(value, torch.storage.TypedStorage) else NotImplemented

with open(sys.argv[1], "wb") as file:
    Pickler(file, protocol=4).dump({"w": torch.tensor([1.0, float("nan")]), "b": torch.ones(2).bfloat16()})
"""
NEW = """
import sys, torch
from trainjob import Checkpoint
made = Checkpoint.from_dict({"w": torch.tensor([1.0, float("nan")]), "b": torch.ones(2).bfloat16()})
open(sys.argv[1], "wb").write(made.open("checkpoint.pkl").read())
"""
READ = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
assert "trainjob" not in sys.modules
print(data["w"].tolist(), data["b"].tolist(), data["b"].dtype)
"""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [OLD, NEW], ids=["before", "now"])
def test_files_of_before_and_of_now_are_read_by_plain_pickle_and_looked_into(tmp_path: Path, writes: str) -> None:
    path = tmp_path / "checkpoint.pkl"
    subprocess.run([sys.executable, "-c", writes, str(path)], check=True)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "[1.0, nan] [1.0, 1.0] torch.bfloat16\n", done.stderr
    assert weights.broken(str(tmp_path)) == ["w"]


class _Runs:
    """In a file it is a call of something else than what makes tensors."""

    def __init__(self, what: object, command: str) -> None:
        self._call = what, (command,)

    def __reduce__(self) -> tuple[object, ...]:
        return self._call


@pytest.mark.parametrize(
    "what",
    [
        functools.partial(os.system),
        operator.methodcaller("system"),
        getattr,
        os.system,
        functools.partial(subprocess.run, shell=True),
    ],
)
def test_a_file_that_names_something_else_runs_nothing_when_it_is_looked_into(tmp_path: Path, what: object) -> None:
    touched = tmp_path / "touched"
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(pickle.dumps({"w": _Runs(what, f"touch {touched}")}, protocol=5))
    assert not weights.broken(str(tmp_path))
    assert not touched.exists()
    if what is os.system:
        pickle.loads(path.read_bytes())
        assert touched.exists(), "the file does what it is meant to"
