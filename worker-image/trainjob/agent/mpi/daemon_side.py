"""On each worker but the first: starts what mpirun wants there, and ends as that does.

Its waker is `mpirun_side`: with a command, with the word that none comes, or by its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Dict, Tuple

from trainjob.agent.mpi import places, proof
from trainjob.session import tie
from trainjob_api import contract

_LIMIT_S = 300.0
"""For worker 0's side to be there: its process is started at the same time."""
_PAUSE_S = 0.2
_ANSWER_S = 10.0


def main() -> None:
    """Ends with the daemon's exit code or signal, with 0 where none was wanted."""
    key = os.environ.pop(contract.ENV_MPI_KEY)
    attempt, index = int(os.environ[contract.ENV_ATTEMPT]), int(os.environ[contract.ENV_NODE_RANK])
    try:
        reader, writer = _connected(key, attempt, index)
        order = proof.decoded(reader.readline(proof.FRAME_LIMIT))
    except (OSError, ValueError) as error:
        sys.exit(f"trainjob: worker {index}: mpirun's worker is gone, or not to be reached: {error}")
    if "command" not in order:
        return
    code = _run(order)
    with contextlib.suppress(OSError):
        writer.write(proof.encoded({"code": code if code >= 0 else 128 - code}))
        writer.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _connected(key: str, attempt: int, index: int) -> Tuple[IO[bytes], IO[bytes]]:
    address = os.environ[contract.ENV_MASTER_ADDR], int(os.environ[contract.ENV_MASTER_PORT])
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            line = socket.create_connection(address, timeout=_ANSWER_S)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            reader, writer = line.makefile("rb"), line.makefile("wb")
            proof.introduce(reader, writer, key, attempt, index)
        except (OSError, ValueError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            line.settimeout(None)
            return reader, writer


def _run(order: Dict[str, Any]) -> int:
    with tempfile.TemporaryDirectory(prefix="mpi" + os.environ.get(contract.ENV_TMP_MARK, "")) as folder:
        env = places.own_folder(os.environ, folder, int(order["port"]))
        ends_with_us = functools.partial(tie.tie_to, os.getpid())
        # As ssh would have a shell read it: it has quotes and several commands.
        return subprocess.run(["sh", "-c", str(order["command"])], env=env, preexec_fn=ends_with_us).returncode
