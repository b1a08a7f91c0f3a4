"""Where a rank stands, readable from outside: a thread answers the agent (`answering`), and while a call holds the
interpreter's lock, faulthandler the agent's signal, with the stack of the thread that the signal comes to (the main
one) alone. Those of the others it would read while they run, and end the process where a frame is gone meanwhile.

Called at a rank's boot and, where a launcher such as torchrun started the rank, by the connection's opening; and again
where that is made anew, since what has closed its descriptor (os.closerange) has closed the file's too, whose number
may be another file's by then.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from contextlib import suppress
from typing import NamedTuple, Optional

from trainjob.session import answering, descriptors
from trainjob_api import contract


class _File(NamedTuple):
    descriptor: int
    ours: Optional[descriptors.Identity]

    def is_there(self) -> bool:
        """The program may have closed it, and opened its own under this number."""
        return descriptors.is_ours(self.descriptor, self.ours)


_registered: Optional[str] = None
"""For which file; empty: for none."""
_file: Optional[_File] = None
"""None: there is no room for one."""


def make_readable() -> None:
    """Answer on this rank's socket in ENV_STACK_FOLDER, and have STACK_SIGNAL write into its file there, if that is not
    so yet; a crash leaves all stacks in the rank's log. Where there is no room the rank trains without, and says so.
    """
    global _registered
    folder, rank = os.environ.get(contract.ENV_STACK_FOLDER), os.environ.get(contract.ENV_RANK)
    path = os.path.join(folder, contract.STACK_FILE.format(rank=rank)) if folder and rank else ""
    if folder and rank:
        answering.serve(os.path.join(folder, contract.STANDING_SOCKET.format(rank=rank)))
    if _registered == path and (_file is None or _file.is_there()):
        return
    _registered = path
    if path:
        _register(path)
    if not faulthandler.is_enabled():
        faulthandler.enable()


def forget() -> None:
    """This process is no rank any more, and may become another one: whoever asks finds nobody. The signal is still
    handled, for it may come late.
    """
    answering.end()


def _register(path: str) -> None:
    global _file
    before, _file = _file, None
    try:
        # Kept open for the life of the process: faulthandler writes to the bare descriptor from inside a signal
        # handler.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"trainjob: the stacks of this rank cannot be shown: {error}", file=sys.stderr)
    else:
        _file = _File(descriptor, descriptors.identity(descriptor))
        faulthandler.register(getattr(signal, contract.STACK_SIGNAL_NAME), file=descriptor, all_threads=False)
        # Of the same file, where the program has closed it, the number may be the same.
        if before is not None and before.descriptor != descriptor and before.is_there():
            with suppress(OSError):
                os.close(before.descriptor)
