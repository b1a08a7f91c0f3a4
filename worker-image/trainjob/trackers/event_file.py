"""TensorBoard's event files, written without its library: records of protocol buffers, as TFRecord frames them.

The formats: tensorboard/compat/proto/event.proto and summary.proto; TFRecord is length, its checksum, data, its
checksum (CRC-32C, masked). Pure. For `tensorboard_logger`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_START = 1
"""SessionLog.START"""


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return tuple(found)


_CRC = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Framed."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def version(time: float) -> bytes:
    """The first event of a file."""
    return _event(time, 0, _field(3, _BYTES, b"brain.Event:2"))


def restart(time: float, step: int) -> bytes:
    """Readers drop what was written of this step and of those behind it."""
    return _event(time, step, _field(7, _BYTES, _field(1, _VARINT, _varint(_START))))


def scalars(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Numbers of a step."""
    summary = b"".join(
        _field(1, _BYTES, _field(1, _BYTES, name.encode()) + _field(2, _FIXED32, struct.pack("<f", _float32(value))))
        for name, value in values.items()
    )
    return _event(time, step, _field(5, _BYTES, summary))


def framed(events: list[bytes]) -> bytes:
    """As they stand in the file."""
    return b"".join(record(event) for event in events)


def _event(time: float, step: int, what: bytes) -> bytes:
    return _field(1, _FIXED64, struct.pack("<d", time)) + _field(2, _VARINT, _varint(step)) + what


def _field(number: int, kind: int, data: bytes) -> bytes:
    return _varint(number << 3 | kind) + (_varint(len(data)) if kind == _BYTES else b"") + data


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # a negative one has ten bytes
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _float32(value: float) -> float:
    """struct refuses what is too large for a float."""
    largest = 3.4028234663852886e38
    return value if value != value or abs(value) <= largest else float("inf") if value > 0 else float("-inf")


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
