"""How a rank's part of a sharded state becomes files: tensors are cut into pieces, and pieces of like position share a
file.

Pure plan arithmetic on torch's write items, used by `shard_writer`. Reads and writes nothing.

The aim is that a rank of another world size brings few bytes that it does not need. A shard is cut into 2^n pieces
along the dimension that it is a shard of: where that divides evenly, FSDP's shards at twice and four times the world
size are whole pieces. The first quarters of all shards lie in other files than the second, so that a rank that needs
half of every shard needs half of the files. Entries that are too small to be cut lie by themselves, and so does each
large top-level entry (model, optimizer), so that one can be loaded without the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Dict, List, Sequence, Tuple, cast

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

FILE_BYTES = 64 * 1024 * 1024
"""Bound of a file: what a rank brings is a multiple of it."""
_SMALLEST = 64
"""A piece is not made smaller than the bound by this: 1 MiB."""
_QUARTERS = 4
_OWN = 4
"""A top-level entry with at least a file's bound by this in a rank's part has files of its own."""


@dataclass(frozen=True)
class Piece(WriteItem):
    """Rows `start` to `start + length` along `dim` of the tensor or shard that `whole` writes. Travels to the
    coordinator and back with the plan.
    """

    # All are given; the defaults are there because those of WriteItem have some.
    whole: WriteItem = None  # type: ignore[assignment]
    dim: int = 0
    start: int = 0
    length: int = 0

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """This piece of the tensor that `whole` resolves to, without a copy; in memory that lies in one stretch, with a
        storage of its own.

        torch.save writes storages, not views: torch would copy the piece of a larger one first, at three times the
        price of writing it.
        """
        part = tensor.narrow(self.dim, self.start, self.length)
        if part.device.type != "cpu" or not part.is_contiguous():
            return part
        try:
            raw = torch.from_numpy(part.view(-1).view(torch.uint8).numpy())
        except (RuntimeError, TypeError):  # no numpy, or a kind of tensor that it does not know
            return part
        return raw.view(part.dtype).view(part.shape)

    @property
    def quarter(self) -> int:
        """Which quarter of its shard the piece begins in: 0 to 3."""
        return self.start * _QUARTERS // _chunk(self.whole).sizes[self.dim]


def split(items: Sequence[WriteItem], file_bytes: int) -> List[WriteItem]:
    """The items with every large tensor cut into pieces of at most `file_bytes` (one row may be more) and at least a
    64th of it.
    """
    return [piece for item in items for piece in _cut(item, file_bytes)]


def pack(items: Sequence[WriteItem], file_bytes: int) -> List[List[WriteItem]]:
    """The items by file. A file holds at most `file_bytes` of tensors, unless a single item has more; the same items
    give the same files.
    """
    entries: Dict[str, int] = {}
    for item in items:
        entries[_entry(item)] = entries.get(_entry(item), 0) + _bytes(item)
    groups: Dict[Tuple[str, int], List[WriteItem]] = {}
    for item in items:
        entry = _entry(item) if entries[_entry(item)] * _OWN >= file_bytes else ""
        groups.setdefault((entry, item.quarter if isinstance(item, Piece) else -1), []).append(item)
    return [file for key in sorted(groups) for file in _fill(groups[key], file_bytes)]


def _cut(item: WriteItem, file_bytes: int) -> List[WriteItem]:
    size = _bytes(item)
    count = min(_QUARTERS, size * _SMALLEST // file_bytes)
    if item.type == WriteItemType.BYTE_IO or count < 2:
        return [item]
    count = 1 << (count.bit_length() - 1)
    while size > count * file_bytes:
        count *= 2
    dim = _dimension(item, count)
    length = _chunk(item).sizes[dim]
    rows = math.ceil(length / count)
    return [_piece(item, dim, start, min(rows, length - start)) for start in range(0, length, rows)]


def _piece(item: WriteItem, dim: int, start: int, length: int) -> Piece:
    chunk, data = _chunk(item), cast(TensorWriteData, item.tensor_data)
    offsets, sizes = list(chunk.offsets), list(chunk.sizes)
    offsets[dim] += start
    sizes[dim] = length
    place = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    index = MetadataIndex(item.index.fqn, place.offsets)
    # SHARD also for a piece of a whole tensor: that is what has several chunks.
    return Piece(
        index,
        WriteItemType.SHARD,
        tensor_data=replace(data, chunk=place),
        whole=item,
        dim=dim,
        start=start,
        length=length,
    )


def _dimension(item: WriteItem, count: int) -> int:
    """The first one that is sharded, else the first; if that is too short for `count` pieces, the longest."""
    chunk, data = _chunk(item), cast(TensorWriteData, item.tensor_data)
    dims = range(len(chunk.sizes))
    wanted = next((dim for dim in dims if chunk.sizes[dim] < data.size[dim]), 0)
    return wanted if chunk.sizes[wanted] >= count else max(dims, key=lambda dim: chunk.sizes[dim])


def _fill(items: Sequence[WriteItem], file_bytes: int) -> List[List[WriteItem]]:
    files: List[List[WriteItem]] = []
    room = 0
    for item in items:
        size = _bytes(item)
        if not files or size > room:
            files.append([])
            room = file_bytes
        files[-1].append(item)
        room -= size
    return files


def _bytes(item: WriteItem) -> int:
    """Of this item's part of a tensor; 0 for pickled objects, whose size nobody knows before they are written."""
    if item.tensor_data is None:
        return 0
    return _chunk(item).sizes.numel() * item.tensor_data.properties.dtype.itemsize


def _chunk(item: WriteItem) -> ChunkStorageMetadata:
    return cast(TensorWriteData, item.tensor_data).chunk


def _entry(item: WriteItem) -> str:
    return item.index.fqn.split(".", 1)[0]
