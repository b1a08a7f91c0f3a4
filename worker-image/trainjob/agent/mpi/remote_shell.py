"""What mpirun takes for ssh: `remote_shell.py HOST command...` hands the command to `mpirun_side`, waits until it has
ended where it runs, and ends with its exit code. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    """Ends with 255 where nobody could be asked, as ssh does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            line.connect(os.environ["TRAINJOB_MPI_SOCKET"])
            line.sendall(json.dumps({"host": sys.argv[1], "command": " ".join(sys.argv[2:])}).encode() + b"\n")
            with line.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b"{}")
        except (OSError, KeyError, ValueError) as error:
            sys.exit(f"trainjob: mpirun's start on {sys.argv[1]} could not be handed over: {error!r}")
    if answer.get("error"):
        print(f"trainjob: {answer['error']}", file=sys.stderr)
    sys.exit(int(answer.get("code", 255)))


if __name__ == "__main__":
    main()
