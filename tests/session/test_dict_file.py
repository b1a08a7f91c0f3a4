"""Equal content is equal bytes, in any process; plain pickle reads them."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import pickle
import pickletools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainjob import Checkpoint
from trainjob.cli.checkpoints import weights
from trainjob.session import dict_file
from trainjob.session.errors import CheckpointError

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

class Tagged(torch.Tensor):
    pass

quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.quint8)
by_channel = torch.quantize_per_channel(torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8)
tagged = torch.arange(3.0).as_subclass(Tagged)
tagged.tag = "kept"
more = Checkpoint.from_dict({"q": quantized, "c": by_channel, "t": tagged, "part": torch.ones(7).view(torch.uint8)[1:6]}).to_dict()
assert torch.equal(more["q"], quantized) and torch.equal(more["c"], by_channel) and more["q"].q_scale() == 0.1
assert type(more["t"]) is Tagged and more["t"].tag == "kept" and more["t"].tolist() == [0.0, 1.0, 2.0]
assert more["part"].tolist() == [0, 128, 63, 0, 0]

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


WHOLE = """
import io, pickle, torch
from trainjob.session import dict_file

file = io.BytesIO()
dict_file.dump({"a": torch.ones(50000), "b": torch.ones(3), "epoch": 1}, file)
body = file.getvalue()
for end in [*range(400), *range(400, len(body), 997), *range(len(body) - 200, len(body))]:
    try:
        pickle.load(io.BufferedReader(io.BytesIO(body[:end])))
    except (EOFError, pickle.UnpicklingError):
        continue
    raise SystemExit(f"torn at {end} of {len(body)} it is read")
"""


@pytest.mark.slow
def test_a_torn_file_is_not_read_wherever_it_ends() -> None:
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PLAIN = """
import hashlib, sys
if sys.argv[1]:
    __import__(sys.argv[1])
from trainjob import Checkpoint
made = Checkpoint.from_dict({"epoch": 3, "names": ["a"], "body": bytearray(5), "nested": {"x": 1.5}})
assert sys.argv[1] or not {"torch", "numpy"} & set(sys.modules)
print(hashlib.sha256(made.open("checkpoint.pkl").read()).hexdigest())
"""


@pytest.mark.slow
def test_a_rank_that_imported_torch_and_one_that_did_not_write_the_same_bytes() -> None:
    said = [
        subprocess.run([sys.executable, "-c", PLAIN, imported], capture_output=True, text=True, check=True).stdout
        for imported in ("", "numpy", "torch")
    ]
    assert said[0] and said[0] == said[1] == said[2]


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda numpy: numpy.arange(6.0).reshape(2, 3),
    "large": lambda numpy: numpy.arange(30000),
    "fortran": lambda numpy: numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    "sliced": lambda numpy: numpy.arange(10)[::2],
    "constant": lambda numpy: numpy.frombuffer(b"abcd", dtype="u1"),
    "scalar": lambda numpy: numpy.array(3.0),
    "empty": lambda numpy: numpy.zeros((0, 3)),
    "text": lambda numpy: numpy.array(["a", "bc"]),
    "dates": lambda numpy: numpy.array(["2020-01-01"], dtype="M8[s]"),
    "records": lambda numpy: numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "swapped": lambda numpy: numpy.arange(3, dtype=">i4"),
    "objects": lambda numpy: numpy.array([1, "a"], dtype=object),
    "no bytes": lambda numpy: numpy.zeros(2, dtype="S0"),
    "masked": lambda numpy: numpy.ma.array([1, 2], mask=[False, True]),
}


def dumped(data: dict[str, Any]) -> bytes:
    with Checkpoint.from_dict(data).open("checkpoint.pkl") as file:
        return file.read()


def words(body: bytes) -> list[tuple[str, Any]]:
    """What a pickle says, without its protocol and its frames."""
    said = [(opcode.name, arg) for opcode, arg, _ in pickletools.genops(body)]
    return [each for each in said if each[0] not in ("PROTO", "FRAME")]


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_written_in_the_words_that_every_numpy_knows_and_comes_back_to_be_changed(kind: str) -> None:
    pytest.importorskip("torch")  # which a rank has; without it there was only one way to write
    array = ARRAYS[kind](pytest.importorskip("numpy"))
    body = dumped({"a": array})
    assert words(body) == words(pickle.dumps({"a": array}, protocol=4))
    back = pickle.loads(body)["a"]
    assert type(back) is type(array) and back.shape == array.shape and back.flags.writeable
    assert back.tolist() == array.tolist()


def test_arrays_are_not_copied_to_be_written_and_those_that_lie_apart_one_at_a_time() -> None:
    numpy = pytest.importorskip("numpy")
    mib = 1 << 20
    whole = {str(number): numpy.ones(8 * mib, dtype="u1") for number in range(4)}
    apart = {str(number): numpy.ones(16 * mib, dtype="u1")[::2] for number in range(4)}
    assert peak(whole) < 2 * mib
    assert peak(apart) < 18 * mib, "the next is copied while the last is still there"


def peak(data: dict[str, Any], unpicklable: str = "") -> int:
    """Bytes of memory that writing took."""
    tracemalloc.start()
    try:
        if unpicklable:
            with pytest.raises(CheckpointError, match=unpicklable):
                Checkpoint.from_dict(data)
        else:
            Checkpoint.from_dict(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_cannot_be_pickled_is_looked_for_without_a_copy_of_what_can() -> None:
    numpy = pytest.importorskip("numpy")
    mib = 1 << 20
    state = {"large": numpy.ones(16 * mib, dtype="u1"), "nested": [1, lambda: None]}
    assert peak({"state": state}, r"\['state'\]\['nested'\]\[1\]") < 2 * mib
    assert dict_file.culprit({"ok": state["large"]}) == ""


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


@pytest.mark.parametrize("beside", [operator.methodcaller("x", 1, of=2), operator.methodcaller("x", 1), [].append])
def test_what_else_is_called_like_the_makers_of_tensors_hides_no_weights(tmp_path: Path, beside: object) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "checkpoint.pkl").write_bytes(dumped({"w": torch.tensor([float("nan")]), "beside": beside}))
    assert weights.broken(str(tmp_path)) == ["w"]


LOOKS = """
import sys, torch
from trainjob.cli.checkpoints import weights
before = set(sys.modules)
assert weights.broken(sys.argv[1]) is None
print(sorted(set(sys.modules) - before)[:3])
"""


@pytest.mark.slow
def test_a_file_that_names_a_part_of_torch_imports_nothing_when_it_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pkl").write_bytes(b"\x80\x02ctorch\n_dynamo\n.")
    done = subprocess.run([sys.executable, "-c", LOOKS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
