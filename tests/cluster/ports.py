"""Ports for servers that are started as processes: one that is named here stays free until they bind it.

A port that the kernel gives and that is let go can be taken before its server comes: by another test, or as the source of
an outgoing connection. So these lie below the range that connections take, and each is claimed by a lock that this
process holds until it ends. Standard library only: `python -m cluster` needs no environment.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 15000, 29000

_TEMPORARY = Path(tempfile.gettempdir())
"""Settled when this is imported: a test may have a temporary folder of its own, in which nothing is to be left."""
_claims: list[int] = []
"""Descriptors of the locks: they are this process's until it ends."""


def free_port() -> int:
    """A loopback port that nobody listens on, and that no other caller is given while this process lives."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many that follow each other."""
    folder = _TEMPORARY / f"trainjob-test-ports-{os.getuid()}"  # what another user has left cannot be written to
    folder.mkdir(exist_ok=True)
    for first in random.SystemRandom().sample(range(FIRST, LAST), LAST - FIRST):
        claims: list[int] = []
        try:
            for port in range(first, first + count):
                claims.append(os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
                fcntl.flock(claims[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            for claim in claims:
                os.close(claim)
            continue
        _claims.extend(claims)
        return first
    raise AssertionError(f"no {count} ports between {FIRST} and {LAST} are free")
