"""How a rank's process comes into being.

`PlainStarter` executes its program; `agent.warm` has another way, and falls back to this one. Called by `ranks`.
"""

from __future__ import annotations

import errno
import subprocess
from typing import Dict, Protocol, Sequence

from trainjob.agent.processes import open_files
from trainjob.agent.processes.rank_command import CannotRun

FORK_TRIES = 3
_MOMENTARY = (errno.EAGAIN, errno.ENOMEM)
"""The pods' limit of processes, or memory, for a moment: of processes that are just ending, say."""
_NOT_A_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EPERM)


class Starter(Protocol):
    """Starts processes of ranks."""

    def start(self, argv: Sequence[str], env: Dict[str, str], output: int) -> int:
        """The pid of a child of this process, which is to be watched in the same turn of the loop. It leads a session
        of its own, reads nothing, and writes both its streams to `output`. Raises CannotRun when the program cannot be
        executed, OSError when this place cannot start it.
        """


class PlainStarter:
    """A new interpreter (or launcher) each time."""

    def start(self, argv: Sequence[str], env: Dict[str, str], output: int) -> int:
        """As `Starter` says."""
        return forked(argv, env, output)


def forked(argv: Sequence[str], env: Dict[str, str], output: int, pass_fds: Sequence[int] = ()) -> int:
    """As `Starter.start` says, in a new interpreter (or whatever `argv` names). `pass_fds`: it has these too."""
    tries_left = FORK_TRIES
    while True:
        tries_left -= 1
        try:
            process = subprocess.Popen(
                list(argv),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                # In the child: from here it would be a race with what the program itself sets (`ulimit -n`).
                preexec_fn=open_files.give_back if open_files.is_raised() else None,
            )
        except OSError as error:
            if error.errno in _NOT_A_PROGRAM:
                raise CannotRun(f"{argv[0]} cannot be executed: {error}") from error
            if error.errno not in _MOMENTARY or not tries_left:
                raise
        else:
            process.returncode = 0  # the reaper collects it; Popen itself must never wait for it
            return process.pid
