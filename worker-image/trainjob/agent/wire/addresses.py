"""How agents write each other's addresses."""

from __future__ import annotations

from typing import Tuple


def split_address(address: str) -> Tuple[str, int]:
    """(host, port) of `host:port` or `[v6]:port`. Raises ValueError."""
    host, found, port = address.rpartition(":")
    if not found or not port.isdigit():
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
