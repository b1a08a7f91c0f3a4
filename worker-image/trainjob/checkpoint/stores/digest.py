"""Checksums of files: crc64nvme by awscrt where it is installed, else zlib's crc32; and putting those of parts
together.

Used by the transfers and by everything that verifies. awscrt is imported at the first use. Without it a crc64nvme of an
earlier, better equipped writer is still checked, slowly: what was stored must stay readable.
"""

from __future__ import annotations

import base64
import functools
import zlib
from typing import Any, Callable, List, Union

CRC32 = "crc32"
CRC64NVME = "crc64nvme"
ALGORITHMS = (CRC32, CRC64NVME)
_BITS = {CRC32: 32, CRC64NVME: 64}
_REFLECTED = {CRC32: 0xEDB88320, CRC64NVME: 0x9A6C9329AC4BC9B5}
Bytes = Union[bytes, bytearray, memoryview]


@functools.cache
def native() -> Any:
    """awscrt's checksums, or None."""
    try:
        from awscrt import checksums
    except ImportError:
        return None
    return checksums if hasattr(checksums, "crc64nvme") else None


def best() -> str:
    """The strongest algorithm that is fast here."""
    return CRC64NVME if native() is not None else CRC32


def quick(algorithm: str) -> bool:
    """Whether it is computed here at the speed of memory, or at all."""
    return algorithm == CRC32 or (algorithm == CRC64NVME and native() is not None)


def update(algorithm: str, data: Bytes, value: int = 0) -> int:
    """The checksum of what gave `value`, followed by `data`. Raises KeyError for an algorithm that is not known."""
    return int(_updates()[algorithm](data, value))


def combine(algorithm: str, first: int, second: int, length: int) -> int:
    """The checksum of two pieces put together; `length`: of the second one."""
    checksums = native()
    if checksums is not None and algorithm == CRC64NVME and hasattr(checksums, "combine_crc64nvme"):
        return int(checksums.combine_crc64nvme(first, second, length))
    return _times_x(algorithm, first, 8 * length) ^ second


def text(algorithm: str, value: int) -> str:
    """As it stands in manifests: lower-case hex of full width."""
    return f"{value:0{_BITS[algorithm] // 4}x}"


def wire(algorithm: str, value: int) -> str:
    """As object stores spell it: base64 of the big-endian bytes."""
    return base64.b64encode(value.to_bytes(_BITS[algorithm] // 8, "big")).decode()


def unwire(spelled: str) -> int:
    """The value that `wire` spelled. Raises ValueError."""
    return int.from_bytes(base64.b64decode(spelled, validate=True), "big")


@functools.cache
def _updates() -> Any:
    checksums = native()
    by_name: Any = {CRC32: zlib.crc32, CRC64NVME: _slow_crc64}
    if checksums is not None:
        by_name[CRC64NVME] = checksums.crc64nvme
    return by_name


@functools.cache
def _table() -> List[int]:
    polynomial, out = _REFLECTED[CRC64NVME], []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        out.append(byte)
    return out


def _slow_crc64(data: Bytes, value: int = 0) -> int:
    table, ones = _table(), (1 << 64) - 1
    value ^= ones
    for byte in bytes(data):
        value = table[(value ^ byte) & 255] ^ value >> 8
    return value ^ ones


def _times_x(algorithm: str, value: int, power: int) -> int:
    """`value` times x to that power, modulo the algorithm's polynomial, in its reflected form: what that many zero
    bits do to a checksum.
    """
    multiply = _multiplication(_BITS[algorithm], _REFLECTED[algorithm])
    square = 1 << (_BITS[algorithm] - 2)  # x itself
    while power:
        if power & 1:
            value = multiply(value, square)
        square = multiply(square, square)
        power >>= 1
    return value


def _multiplication(bits: int, polynomial: int) -> Callable[[int, int], int]:
    def multiply(a: int, b: int) -> int:
        out = 0
        for at in range(bits - 1, -1, -1):
            if a >> at & 1:
                out ^= b
            b = b >> 1 ^ (polynomial if b & 1 else 0)
        return out

    return multiply
