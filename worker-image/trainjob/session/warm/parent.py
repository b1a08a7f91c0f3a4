"""The life of the warm parent: import, look at itself, then fork a gate whenever the agent asks for one.

Called by `session.warm.command`. Returns in a rank alone. It has no other work and no second thread: a fork keeps only
the thread that made it, and what others held (a lock, a pool) would be held for ever.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import time
import warnings
from typing import AbstractSet, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from trainjob.session import large_imports, link, short_exit, tie
from trainjob.session.warm import becoming, fitness, gate, generators, learned, memory, preload, unchanged
from trainjob.session.warm.birth import Birth
from trainjob_api import module_names
from trainjob_api.warm_messages import (
    FROM_GATE,
    FROM_PARENT,
    PACKET_LIMIT,
    TEXT_LIMIT,
    TO_PARENT,
    Begin,
    Ready,
    Refused,
    packet,
    parse,
)

_TMPDIR = "TMPDIR"
_OF_SCRIPT = os.path.join(os.devnull, "script")
"""Has the place of a script's own folder in sys.path, in which there is nothing yet."""


def serve(fd: int, booted: AbstractSet[str], folder: Optional[str]) -> Sequence[str]:
    """In a rank: the command that it is to run. The parent itself ends here. `folder`: what stood in front of sys.path
    and comes back there; `booted`: modules that a plain rank would have as well.
    """
    line = socket.socket(fileno=fd)
    begin, _ = _next(line)
    if not isinstance(begin, Begin):
        os._exit(2)
    tie.tie_to(begin.agent)
    settle(first_to_go=begin.first_to_go)
    if begin.tmp:
        # Here, not in what it is started with: of that each rank shows its own (`title`).
        os.environ[_TMPDIR] = begin.tmp
    wishes = Wishes(begin.modules, begin.folder, begin.optional, begin.learned, begin.without, not begin.hurry)
    try:
        grown = grow(wishes, booted, Birth())
    except learned.Unfit as error:
        _end(line, str(error), error.package)
    return fork_on(line, begin.agent, grown, folder)


class Wishes(NamedTuple):
    """What is to be imported, as `Begin` has it."""

    modules: Tuple[str, ...]
    folder: str
    optional: bool
    learned: str
    without: Tuple[str, ...]
    beside_training: bool = True
    """What was learned is imported slowly."""


class Grown(NamedTuple):
    """What the imports have made of this process."""

    ahead: becoming.Ahead
    missing: Tuple[str, ...]
    learned: str
    """As `Ready` has it."""


def settle(*, first_to_go: bool) -> None:
    """What comes before any import."""
    becoming.forget_room()
    if first_to_go:
        memory.go_first()
    # At exit a rank says farewell after whatever its imports had to do then: also after what is imported here.
    link.close_at_exit()
    large_imports.quiet()
    sys.argv = sys.argv[:1]


def grow(wishes: Wishes, booted: AbstractSet[str], birth: Birth) -> Grown:
    """Import it all. `birth`: from before that. Raises learned.Unfit: this process must not be forked."""
    before, environ, brought = fitness.Before(), _given(), []
    unseeded, names = generators.Unseeded(), unchanged.Names()
    # As it is now: what is installed while this imports may be there in part.
    installed, since = unchanged.Installed(), time.time_ns()
    sys.path.insert(0, _OF_SCRIPT)
    try:
        with before.acts.watched(), unseeded.watched(), names.watched():
            absent = preload.bring(wishes.modules, wishes.folder, wishes.optional)
            preload.bring(preload.OURS, wishes.folder, optional=False)
            if wishes.learned:
                without = frozenset(wishes.without)
                slowly = wishes.beside_training
                brought = learned.bring(wishes.learned, without, wishes.folder, before, beside_training=slowly)
        why = fitness.unfit(before)
        if why is None and short_exit.undo_nothing():
            why = fitness.unfit_with_objects(before)
        if why is not None:
            raise learned.Unfit("", why)
    except (learned.Unfit, preload.NotThese) as error:
        fitness.undo(before)
        raise error if isinstance(error, learned.Unfit) else learned.Unfit("", str(error)) from None
    unseeded.find()
    # The collector writes to all that it looks at: what it passes over stays shared with the forks. It does not collect
    # first: after an import of torch it finds next to nothing, in a tenth of the time of the import.
    gc.freeze()
    installed.widen()
    edited, own = unchanged.Edited(since), frozenset(sys.modules) - booted
    # What nobody else has asked for nobody does without: of what was learned some is the job's own.
    asked = [*wishes.modules, *(module_names.listed(wishes.learned) if wishes.learned else ())]
    missing = names.missing.difference(name.partition(".")[0] for name in asked)
    ahead = becoming.Ahead(own, missing, becoming.changes(environ), _front(), installed, edited, unseeded, birth)
    return Grown(ahead, tuple(absent), module_names.text_of(brought))


def _given() -> Dict[str, str]:
    """The environment that this process was started with: what Python's own start changes in it (`sitecustomize`) is
    changed in each rank, too. Where files go is the ranks' alone.
    """
    with open("/proc/self/environ", "rb") as file:
        rows = [each.partition(b"=") for each in file.read().split(b"\0")]
    given = {os.fsdecode(name): os.fsdecode(value) for name, equals, value in reversed(rows) if equals}
    given.pop(_TMPDIR, None)
    if _TMPDIR in os.environ:
        given[_TMPDIR] = os.environ[_TMPDIR]
    return given


def _front() -> Tuple[str, ...]:
    """What imports have put in front of a script's own folder, which has no place from now on."""
    if _OF_SCRIPT not in sys.path:
        return ()
    front = tuple(sys.path[: sys.path.index(_OF_SCRIPT)])
    sys.path.remove(_OF_SCRIPT)
    return front


def fork_on(line: socket.socket, agent: int, grown: Grown, folder: Optional[str]) -> Sequence[str]:
    """Say that all is there, and fork a gate whenever the agent wants one; returns as `serve` does."""
    modules = tuple(sorted({name.partition(".")[0] for name in grown.ahead.modules}))
    line.send(packet(FROM_PARENT, Ready(modules, grown.missing, grown.learned)))
    while True:
        _, fds = _next(line)
        why = fitness.unfit_now()
        if why is not None or len(fds) != 1:
            _end(line, why or "a fork was asked for without its socket")
        why = grown.ahead.changed()
        if why is not None:
            _end(line, why, again=True)
        own = socket.socket(fileno=fds[0])
        if _is_gate(own):
            line.close()
            try:
                becoming.renew(grown.ahead)
            except OSError:
                os._exit(1)  # its rank starts plainly
            order, output = gate.wait(own, agent)
            return becoming.become(order, output, own, grown.ahead, folder)
        own.close()


def adopted(line: socket.socket, agent: int, grown: Grown, folder: Optional[str]) -> Sequence[str]:
    """In a fork of a parent that was kept: it is the agent's from its first word on. Returns as `serve` does."""
    begin, _ = _next(line)
    if not isinstance(begin, Begin) or begin.agent != agent:
        os._exit(2)
    if begin.first_to_go:
        memory.go_first()
    return fork_on(line, agent, grown, folder)


def _next(line: socket.socket) -> Tuple[object, List[int]]:
    """What the agent wants; without an agent nobody wants anything."""
    data, fds, _, _ = socket.recv_fds(line, PACKET_LIMIT, 1)
    if not data:
        os._exit(0)
    return parse(TO_PARENT, data), list(fds)


def _end(line: socket.socket, why: str, package: str = "", again: bool = False) -> NoReturn:
    line.send(packet(FROM_PARENT, Refused(why[:TEXT_LIMIT], package, again)))
    os._exit(0)


def _is_gate(own: socket.socket) -> bool:
    """Whether this is the fork. Where there is no room for one for the moment the agent is told why there is none."""
    try:
        return _forked()
    except OSError as error:
        with contextlib.suppress(OSError):  # it has gone
            own.send(packet(FROM_GATE, Refused(f"the warm parent cannot be forked: {error}"[:TEXT_LIMIT])))
        return False


def _forked() -> bool:
    """Fork twice, so that the second is nobody's child but the agent's, which adopts what loses its parent. True in
    that one, once it is. Raises OSError.
    """
    waiting, telling = os.pipe()
    try:
        child = _fork()
    except OSError:
        os.close(waiting)
        os.close(telling)
        raise
    if child == 0:
        return _second(waiting, telling)
    os.close(waiting)
    try:
        _, status = os.waitpid(child, 0)
        if status == 0:
            os.write(telling, b"!")
    finally:
        os.close(telling)
    if status != 0:
        code = os.waitstatus_to_exitcode(status)
        raise OSError(code, os.strerror(code)) if code > 0 else OSError(f"a fork of it ended by signal {-code}")
    return False


def _second(waiting: int, telling: int) -> bool:
    try:
        if _fork():
            os._exit(0)
        os.close(telling)
        # Until the one in between has been reaped: from then on the agent is the parent.
        if not os.read(waiting, 1):
            os._exit(0)
        os.close(waiting)
    except OSError as error:
        os._exit(error.errno or 1)
    return True


def _fork() -> int:
    with warnings.catch_warnings():
        # That an allocator has a thread of its own is known (`fitness`).
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
