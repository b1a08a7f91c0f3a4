"""save_sharded and load_sharded in one process without a process group; how tensors become pieces and files; calls
that are refused.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from support.patience import HANG_S
from support.torch_release import RELEASE
from trainjob import Checkpoint, CheckpointError
from trainjob.torch import ShardReader, ShardWriter, load_sharded, save_sharded
from trainjob.torch.shard_pieces import Piece, pack, split
from trainjob_api import contract

KIB = 1024


def state(fill: float = 0.0) -> dict[str, Any]:
    """16 KiB that are cut at files of 4 KiB, a scalar, an empty tensor, a view, and values."""
    big = torch.arange(4096, dtype=torch.float32).reshape(64, 64) * fill
    return {
        "model": {"big": big, "view": big[:, ::2], "scalar": torch.tensor(fill), "none": torch.zeros(0, 3)},
        "list": [torch.full((2,), fill), fill],
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.filterwarnings("error", "ignore:TypedStorage is deprecated")  # by an older torch itself
def test_one_process_saves_and_loads_without_a_group() -> None:
    loaded = state()
    load_sharded(loaded, save_sharded(state(3.0), file_bytes=4 * KIB))
    assert equal(loaded, state(3.0))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_what_we_write_and_we_read_what_torch_writes(tmp_path: Path) -> None:
    ours, loaded = save_sharded(state(2.0), file_bytes=4 * KIB), state()
    dcp.load(loaded, storage_reader=FileSystemReader(ours.path))
    assert equal(loaded, state(2.0))
    dcp.save(state(5.0), checkpoint_id=tmp_path / "torch")
    load_sharded(loaded, Checkpoint.from_directory(str(tmp_path / "torch")))
    assert equal(loaded, state(5.0))


class TwoAtOnce(Checkpoint):
    """Opens the first two files of tensors only together."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._two = threading.Barrier(2, timeout=HANG_S)
        self._begun: list[str] = []

    def open(self, path: str | os.PathLike[str]) -> BinaryIO:
        if str(path) != ".metadata" and str(path) not in self._begun:
            self._begun.append(str(path))
            if len(self._begun) <= 2:
                self._two.wait()
        return super().open(path)


def test_files_are_brought_side_by_side() -> None:
    saved, loaded = save_sharded(state(4.0), file_bytes=4 * KIB), state()
    load_sharded(loaded, TwoAtOnce(saved.path))
    assert equal(loaded, state(4.0))


def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    """Of a committed checkpoint open() finds that; of a plain folder torch does."""
    saved = save_sharded(state(4.0), file_bytes=4 * KIB)
    folder = Path(saved.to_directory(str(tmp_path / "copy")))
    with (folder / "__0_1.distcp").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointError, match=r"load_sharded\(.*copy\) failed on rank 0: "):
        load_sharded(state(), Checkpoint(str(folder)))


def test_what_is_not_reported_goes_with_its_handle() -> None:
    checkpoint = save_sharded(state(1.0))
    folder = Path(checkpoint.path)
    assert checkpoint.files() == [".metadata", "__0_0.distcp"]
    del checkpoint
    gc.collect()
    assert not folder.exists()


def test_in_a_worker_a_part_that_no_report_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINJOB_AGENT_SOCKET", "/there")
    checkpoint = save_sharded(state())
    with pytest.warns(UserWarning, match="not reported.*every rank has to pass its own part to the same report"):
        del checkpoint
        gc.collect()


def test_a_checkpoint_of_another_kind_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    with pytest.raises(
        CheckpointError,
        match=r"holds no sharded state: no \.metadata among its files \('model\.pt'\).*as_directory\(\)",
    ):
        load_sharded(state(), Checkpoint.from_directory(str(tmp_path)))


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({"a": 1})])
def test_metadata_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"The \.metadata of the checkpoint .* cannot be read by torch"):
        load_sharded(state(), Checkpoint.from_directory(str(tmp_path)))


def test_a_tensor_that_was_a_number_is_named() -> None:
    with pytest.raises(
        CheckpointError,
        match=r"'model\.big' is a tensor of shape \[64, 64\] in the checkpoint and of type float in the state",
    ):
        load_sharded({"model": {"big": 1.0}}, save_sharded(state()))


def test_many_problems_are_counted() -> None:
    lacking = {f"k{n}": torch.zeros(1) for n in range(9)}
    with pytest.raises(CheckpointError, match=r"'k0', 'k1', 'k2' and 6 more"):
        load_sharded(lacking, save_sharded(state()))


def test_no_room_for_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file" / "gone"))
    with pytest.raises(CheckpointError, match=r"No temporary folder .*gone.*TMPDIR"):
        save_sharded(state())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_writer_is_used_once_and_asked_afterwards() -> None:
    writer = ShardWriter()
    with pytest.raises(CheckpointError, match="Nothing was saved with this ShardWriter yet"):
        writer.checkpoint()
    dcp.save(state(), storage_writer=writer)
    assert ".metadata" in writer.checkpoint().files()
    with pytest.raises(dcp.CheckpointException, match="make a new one for each save"):
        dcp.save(state(), storage_writer=writer)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_names_and_formats_that_cannot_be_followed_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint_id='/x' cannot be chosen"):
        dcp.save(state(), storage_writer=ShardWriter(), checkpoint_id="/x")
    with pytest.raises(CheckpointError, match=r"this reader has its checkpoint already"):
        dcp.load(state(), storage_reader=ShardReader(save_sharded(state())), checkpoint_id="/x")
    if RELEASE >= (2, 8):
        with pytest.raises(CheckpointError, match="use_collectives=False is not supported"):
            dcp.save(state(), storage_writer=ShardWriter(), use_collectives=False)
    with pytest.raises(CheckpointError, match="ShardReader needs a Checkpoint, got str"):
        ShardReader("/x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="both must be 1 or more"):
        ShardWriter(file_bytes=0)


def test_another_process_cannot_have_the_writer() -> None:
    with pytest.raises(CheckpointError, match=r"AsyncCheckpointerType\.PROCESS.*thread type"):
        pickle.dumps(ShardWriter())


def item(
    name: str, size: tuple[int, ...], offsets: tuple[int, ...] | None = None, sizes: tuple[int, ...] | None = None
) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(offsets or [0] * len(size)), torch.Size(sizes or size))
    data = TensorWriteData(chunk, TensorProperties(dtype=torch.float32), torch.Size(size))
    return WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)


def rows(pieces: list[WriteItem], dim: int = 0) -> list[tuple[int, int]]:
    """Where each piece begins and how long it is."""
    found = [piece.tensor_data.chunk for piece in pieces if piece.tensor_data is not None]
    return [(chunk.offsets[dim], chunk.sizes[dim]) for chunk in found]


def test_pieces_are_the_shards_of_twice_and_four_times_the_ranks() -> None:
    """240 rows over 4, 8 and 16 ranks, as torch.chunk cuts them."""
    whole = torch.arange(240)
    for rank, mine in enumerate(whole.chunk(4)):
        pieces = split([item("m.a", (240, 64), (int(mine[0]), 0), (len(mine), 64))], 64 * KIB)
        quarters = [(int(part[0]), len(part)) for part in whole.chunk(16)[4 * rank : 4 * rank + 4]]
        assert rows(pieces) == quarters


@pytest.mark.parametrize(
    ("size", "offsets", "sizes", "dim", "count"),
    [
        ((1, 16), None, None, 0, 1),  # too small to be cut
        ((64, 64), None, None, 0, 4),  # whole: along the first dimension
        ((64, 128), (0, 64), (64, 64), 1, 4),  # a shard of columns: along them
        ((2, 4096), None, None, 1, 4),  # two rows only: along the longest
        ((1024, 64), None, None, 0, 16),  # 256 KiB: pieces of at most 16 KiB
        ((0, 64), None, None, 0, 1),
        ((), None, None, 0, 1),
    ],
)
def test_how_a_tensor_is_cut(
    size: tuple[int, ...], offsets: tuple[int, ...] | None, sizes: tuple[int, ...] | None, dim: int, count: int
) -> None:
    pieces = split([item("a", size, offsets, sizes)], 16 * KIB)
    assert len(pieces) == count
    if count > 1:
        assert {piece.dim for piece in pieces if isinstance(piece, Piece)} == {dim}
        assert sum(length for _, length in rows(pieces, dim)) == (sizes or size)[dim]


def test_files_are_bounded_and_hold_pieces_of_like_position() -> None:
    items = split(
        [item(f"model.{n}", (64, 64)) for n in range(6)]
        + [item(f"optimizer.{n}", (64, 64)) for n in range(6)]
        + [item("step", ())],
        16 * KIB,
    )
    files = pack(items, 16 * KIB)
    assert (
        sorted(len(file) for file in files) == [1] + [2] * 8 + [4] * 8
    )  # quarters are 4 KiB each: six of them are a file of four and one of two
    for file in files:
        assert len({entry.index.fqn.split(".")[0] for entry in file}) == 1
        assert len({entry.quarter for entry in file if isinstance(entry, Piece)}) <= 1
    assert pack(items, 16 * KIB) == files


def test_files_of_a_former_checkpoint_are_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former, new = save_sharded(state(3.0), file_bytes=4 * KIB), save_sharded(state(2.0), file_bytes=4 * KIB)
    names = [name for name in os.listdir(former.path) if name.endswith(contract.SHARD_SUFFIX)]
    for name in names:
        os.rename(os.path.join(former.path, name), tmp_path / name)
        with open(tmp_path / name, "ab") as file:
            file.write(b"\xff" * KIB)
    inodes = {name: (tmp_path / name).stat().st_ino for name in names}
    monkeypatch.setenv(contract.ENV_RECYCLED, str(tmp_path))
    over, loaded = save_sharded(state(2.0), file_bytes=4 * KIB), state()
    assert {name: os.stat(os.path.join(over.path, name)).st_ino for name in names} == inodes
    assert os.listdir(tmp_path) == [] and len(names) > 3
    assert {n: Path(over.path, n).read_bytes() for n in names} == {n: Path(new.path, n).read_bytes() for n in names}
    load_sharded(loaded, over)
    assert equal(loaded, state(2.0))


@pytest.mark.parametrize("user_wants", [True, False])
def test_a_users_own_saves_have_checksums_as_before(tmp_path: Path, user_wants: bool) -> None:
    torch.serialization.set_crc32_options(user_wants)
    try:
        save_sharded(state(2.0))
        assert torch.serialization.get_crc32_options() == user_wants
        with pytest.raises(CheckpointError, match="cannot be pickled"):
            save_sharded({"a": threading.Lock()})
        assert torch.serialization.get_crc32_options() == user_wants
    finally:
        torch.serialization.set_crc32_options(True)
