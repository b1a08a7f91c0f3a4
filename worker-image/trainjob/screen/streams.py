"""Writing to streams whose reader may go away at any time (`| head`). Standard library only; for `main` and the
displays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import select
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TextIO

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


class _Owed:
    """What a stream has not taken."""

    def __init__(self) -> None:
        self.left_out = 0
        """Texts since it took one."""
        self.why = ""
        self.rest = b""
        """Of a text that it took in part: it comes before the next one."""
        self.turn = threading.RLock()

    def before(self, text: str) -> str:
        """With a word about those that are missing."""
        return f"tj  | lines missing here: {self.left_out} ({self.why})\n{text}" if self.left_out else text

    def leave_out(self, error: BaseException) -> None:
        """One more."""
        self.left_out += 1
        self.why = (
            "the disk of this output was full" if _is_full(error) else f"this output raised {type(error).__name__}"
        )


_owed: dict[int, _Owed] = {}
"""By a stream's identity: one of the program's own may have no hash, and none is kept alive by this."""
os.register_at_fork(after_in_child=_owed.clear)  # whose turn it was there has no meaning here


def write(stream: TextIO, text: str) -> None:
    """A line, or several. Nothing that befalls the stream is raised: what the command does is worth more than its
    lines. Once the reader has gone nothing is said any more. What is not taken otherwise is left out, and how many is
    said once something is taken: the disk below is full, the program has closed the stream, an object of its own in
    the stream's place raises. A reader who is slow is waited for, also where the stream does not block.
    """
    put(stream, text + "\n")


def put(stream: TextIO, text: str) -> None:
    """The text as it is; otherwise as `write`."""
    try:
        descriptor = _descriptor(stream)
        if descriptor is None:
            _hand_on(stream, text, _owed_to(stream))
        else:
            _send(stream, descriptor, text, _owed_to(stream))
    except Exception as error:
        if isinstance(error, OSError) and has_gone(error):
            with contextlib.suppress(Exception):  # one of the program's own may have no descriptor
                silence(stream.fileno())


def has_gone(error: OSError) -> bool:
    """Whether nobody reads any more: the other end of a pipe has ended, or the terminal was closed."""
    return isinstance(error, BrokenPipeError) or error.errno == errno.EIO


def say(*lines: str) -> None:
    """Lines on standard error."""
    write(sys.stderr, "\n".join(lines))


def is_terminal(stream: TextIO) -> bool:
    """Whether it is one: none that is closed, and no object of the program's own that cannot say."""
    try:
        return bool(stream.isatty())
    except Exception:
        return False


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


def _owed_to(stream: TextIO) -> _Owed:
    found = _owed.get(id(stream))
    if found is None:
        found = _owed.setdefault(id(stream), _Owed())
        with contextlib.suppress(TypeError):  # of an object that cannot be followed
            weakref.finalize(stream, _let_go, id(stream)).atexit = False
    return found


def _let_go(of: int) -> None:
    _owed.pop(of, None)


def _descriptor(stream: TextIO) -> int | None:
    """Of a stream as Python and open() make them. None: an object of the program's own, which gets all that is said."""
    if type(stream) is not io.TextIOWrapper:
        return None
    buffer: Any = stream.buffer
    raw = buffer.raw if type(buffer) in (io.BufferedWriter, io.BufferedRandom) else buffer
    return int(raw.fileno()) if type(raw) is io.FileIO else None


def _send(stream: TextIO, descriptor: int, text: str, owed: _Owed) -> None:
    """Past the stream's buffer: what that held would come again with the next text, or fail the program's exit."""
    with owed.turn:
        data = memoryview(owed.rest + _encoded(owed.before(text), stream))
        taken: list[int] = []
        try:
            _waiting(stream.flush, descriptor)
            _waiting(functools.partial(_write, descriptor, data, taken), descriptor)
            owed.rest, owed.left_out = b"", 0
        except BaseException as error:
            done = sum(taken)
            if isinstance(error, Exception) and done <= len(owed.rest):
                owed.rest = owed.rest[done:]
                owed.leave_out(error)
            else:  # what was begun is finished later
                owed.rest, owed.left_out = bytes(data[done:]), 0
            raise


def _write(descriptor: int, data: memoryview, taken: list[int]) -> None:
    while left := data[sum(taken) :]:
        # Written and counted in one step: a Ctrl-C between the two would have it written again.
        taken.extend(map(os.write, (descriptor,), (left,)))


def _waiting(do: Callable[[], object], descriptor: int) -> None:
    """Once there is room: a pipe or a terminal may be one that does not block, by a wish of who shares it."""
    while True:
        try:
            do()
            return
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _encoded(text: str, stream: TextIO) -> bytes:
    try:
        return text.encode(stream.encoding, stream.errors or "strict")
    except UnicodeEncodeError:
        return text.encode(stream.encoding, "replace")


def _hand_on(stream: TextIO, text: str, owed: _Owed) -> None:
    try:
        try:
            stream.write(owed.before(text))
        except UnicodeEncodeError:
            stream.write(encodable(owed.before(text), getattr(stream, "encoding", None) or "ascii"))
        if hasattr(stream, "flush"):
            stream.flush()
    except Exception as error:
        owed.leave_out(error)
        if _is_full(error):
            _forget(stream)
        raise
    owed.left_out = 0


def _forget(stream: TextIO) -> None:
    """What a stream of the program's own still holds would come before the next line, or fail the program's exit."""
    descriptor = stream.fileno()
    disk = os.dup(descriptor)
    try:
        silence(descriptor)
        stream.flush()
    finally:
        os.dup2(disk, descriptor)
        os.close(disk)


def encodable(text: str, encoding: str | None) -> str:
    """The text, with `?` for what that encoding has no sign for: a rank may print what this terminal cannot show."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding, "replace")


def have_all() -> None:
    """A process that was started without one of its standard streams (`>&-`, some daemons) has the one that nobody
    reads, and its children have: else the next file that is opened would have its number.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Not what has its number: that may be a file that the program has opened since.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)


def silence(*descriptors: int) -> None:
    """The reader of these has gone: say nothing more to it, and do not fail at exit over it."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(devnull, descriptor)
    os.close(devnull)
