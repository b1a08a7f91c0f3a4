"""The port that rank 0 of an attempt listens on (MASTER_PORT).

Called by `leader` in the join. In a pod it is computed; where workers share one network (local backend, hostNetwork) a
free one is picked.
"""

from __future__ import annotations

import errno
import random
import socket
from typing import Optional, Tuple

from trainjob_api import contract

LOWEST = 10000
TRIES = 200


class MasterPort:
    """A port and, if it was picked, the lock that keeps other agents of this machine off it. Release when the
    attempt is over.
    """

    def __init__(self, port: int, lock: Optional[socket.socket]) -> None:
        self.port = port
        self._lock = lock

    def release(self) -> None:
        """Others may have it."""
        if self._lock is not None:
            self._lock.close()


def computed(base: int, attempt: int) -> MasterPort:
    """`rendezvous.port + attempt mod PORT_SPREAD`: an older attempt's store cannot be mistaken for this one's."""
    return MasterPort(base + attempt % contract.PORT_SPREAD, None)


def picked(host: str) -> MasterPort:
    """A free port outside the ephemeral range (no outgoing connection can take it between now and rank 0's listen).

    The lock is an abstract Unix socket: it belongs to the network namespace as the port does, and goes with its
    process.
    """
    low, high = _candidates()
    for _ in range(TRIES):
        port = random.randrange(low, high)
        lock = _lock(port)
        if lock is None:
            continue
        if _free(host, port):
            return MasterPort(port, lock)
        lock.close()
    raise OSError(errno.EADDRINUSE, f"no free port for rank 0 between {low} and {high} on {host} after {TRIES} tries")


def _candidates() -> Tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = (int(word) for word in file.read().split())
    except (OSError, ValueError):
        first, last = 32768, 60999
    below, above = (LOWEST, first), (last + 1, 65536)
    return below if below[1] - below[0] >= above[1] - above[0] else above


def _lock(port: int) -> Optional[socket.socket]:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0trainjob-master-port-{port}")
    except OSError:
        lock.close()
        return None
    return lock


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # On all addresses, as torch's store binds.
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
