"""The process that an agent starts as its rank where the training happens in a process that it did not start.

`python -m trainjob.launch.in_process.stand_in FOLDER`, through `trainjob.session.rank`. It hands its environment, and
with it the rank's place, to the process that listens in FOLDER, and ends as that one says. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from trainjob.session import link
from trainjob_api import contract

LOST = 70
"""Exit code when the process that trains ended without a word."""
_POLL_S = 0.05


def socket_path(folder: str, rank: int) -> str:
    """Where the process that trains as this rank listens."""
    return os.path.join(folder, f"rank-{rank}.sock")


def main(arguments: list[str]) -> int:
    """The exit code that the process that trains asks for."""
    (folder,) = arguments
    link.disconnect()  # from here on the other process speaks as this rank
    guest = _reach(socket_path(folder, int(os.environ[contract.ENV_RANK])))
    if guest is None:
        print(
            "the loop runs inside the process that started it and cannot be started again from here: run it once more, "
            "it resumes from its newest checkpoint",
            file=sys.stderr,
        )
        return 1
    with guest, guest.makefile("rwb") as stream:
        stream.write(json.dumps(dict(os.environ)).encode() + b"\n")
        stream.flush()
        answer = stream.readline()
    if not answer.endswith(b"\n"):
        print("the process in which the loop ran ended without a word (was it killed?)", file=sys.stderr)
        return LOST
    return int(json.loads(answer)["exit_code"])


def _reach(path: str) -> socket.socket | None:
    """A connection, once somebody listens; None for a later attempt, whose process does not listen any more."""
    first = os.environ.get(contract.ENV_ATTEMPT) == "1"
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except OSError:
            connection.close()
            if not first:
                return None
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
