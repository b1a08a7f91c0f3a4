"""What is said to a kept parent, over its socket in the user's state folder. Called by `keeper`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import IO, Any

from trainjob.launch.local.kept import note
from trainjob.launch.local.kept.child import KeptChild
from trainjob.launch.local.kept.note import Note
from trainjob.launch.local.process import Launch
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    FROM_KEPT,
    KEPT_FILES,
    PACKET_LIMIT,
    TO_KEPT,
    Agent,
    Refused,
    Take,
    Took,
    packet,
    parse,
)

PATIENCE_S = 30.0
"""For one that still imports: a cold start would import the same, in each worker."""


def taken(kept: Note, launch: Launch, output: int) -> KeptChild:
    """An agent of it. Raises OSError: there is none, the text says why; ConnectionError, FileNotFoundError: nobody is
    there any more.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    agent = Agent(tuple(launch.words), launch.environment, launch.working_dir, mask, tuple(launch.inherited))
    line = _connected(kept, PATIENCE_S)
    try:
        with written(agent) as file:
            socket.send_fds(line, [packet(TO_KEPT, Take())], [file.fileno(), output, *launch.inherited])
        word = _answer(line)
        if not isinstance(word, Took):
            raise OSError(word.why) if isinstance(word, Refused) else ConnectionResetError("it is gone")
        line.settimeout(None)
        return KeptChild(line, word.pid)
    except BaseException:
        line.close()
        raise


def ask(kept: Note, word: Any, patience_s: float = PATIENCE_S) -> Any:
    """Its answer. Raises OSError."""
    with _connected(kept, patience_s) as line:
        line.send(packet(TO_KEPT, word))
        return _answer(line)


def _answer(line: socket.socket) -> Any:
    data = line.recv(PACKET_LIMIT)
    try:
        return parse(FROM_KEPT, data) if data else None
    except BadMessage as error:
        raise OSError(str(error)) from None


def _connected(kept: Note, patience_s: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.settimeout(patience_s)
        with _address(note.folder(), note.socket_of(kept.id)) as address:
            line.connect(address)
    except BaseException:
        line.close()
        raise
    return line


@contextlib.contextmanager
def _address(folder: str, name: str) -> Iterator[str]:
    """A socket's path has room for 107 bytes, and a state folder may lie deep."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listening(folder: str, name: str) -> socket.socket:
    """The socket on which one is reached."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _address(folder, name) as address:
        listener.bind(address)
    listener.listen(64)
    return listener


def written(word: Any) -> IO[bytes]:
    """In a file without a name."""
    file = os.fdopen(os.memfd_create("kept"), "w+b")
    file.write(packet(KEPT_FILES, word))
    file.flush()
    return file
