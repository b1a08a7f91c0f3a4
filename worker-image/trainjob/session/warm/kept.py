"""A warm parent that stays when its job has ended, for the next one (`tj run --keep-warm`).

Started by the launcher (`launch.local.kept`), which gives it a listening socket and the file of its `Keep`. Ranks are
children of their agent, and no process can be given to another parent: so agents are started here. A fork of this
process waits until the launcher, which may have given up by now, says `Start`; then it forks the warm parent, as a
child of its own, and executes the agent in its own place. Between it and this process stands a third, which tells the
launcher the agent's end: what is kept may go while jobs run. Descriptors of a job are sent to that job's process alone.

The one of a job's own workers (`launch.local.kept.shared`) is the same, and ends with its launcher.

One thread, nothing of the user's own code. It ends when its time is over, also in the middle of an import, when it is
told to, when something that it has imported is another by now (`unchanged`), when no note tells others of it, and when
its socket is gone (a note that nobody can read is as good as none: the next one takes its place). How an agent comes of
it: `agents`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import AbstractSet, Any, Iterator, Mapping, NoReturn, Optional, Sequence

from trainjob.session.warm import agents, fitness, learned, parent
from trainjob.session.warm.birth import Birth
from trainjob.session.warm.unchanged import Files, Names
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    KEPT_FILES,
    PACKET_LIMIT,
    TEXT_LIMIT,
    TO_KEPT,
    Done,
    Keep,
    Leave,
    Refused,
    Stay,
    Take,
    packet,
    parse,
)

HEAR_S = 2.0
"""For the word of one who has connected: all others wait meanwhile."""
TRIES = 4
"""With so many packages left out, nothing that was learned is imported."""
NOTED_S = 10.0
"""For the first word, which follows the note: a launcher that was killed before has left none, and nobody comes."""
LOOK_S = 15.0
"""Between looks at the clock: a timer stands still while the machine sleeps."""
_PEER = "3i"
"""SO_PEERCRED: pid, uid, gid."""


def serve(listening: int, order: int, booted: AbstractSet[str], folder: Optional[str]) -> Sequence[str]:
    """In a rank: the command that it is to run. The kept process itself ends here. The rest as of `parent.serve`."""
    environ, since = dict(os.environ), time.time_ns()
    keep: Keep = agents.read(order)
    birth = Birth()
    parent.settle(first_to_go=True)
    if keep.tmp:
        os.environ["TMPDIR"] = keep.tmp
    wishes = parent.Wishes(keep.modules, keep.folder, keep.optional, keep.learned, keep.without, beside_training=False)
    names = Names()
    with _bounded(keep.until), names.watched():
        try:
            grown = parent.grow(wishes, booted, birth)
        except learned.Unfit as error:
            _again(keep, birth, error, order, listening, environ)
    _stay_only(keep, birth.why_not())
    os.close(order)
    listener, files = socket.socket(fileno=listening), Files(since, names)
    until, unknown = keep.until, now() + NOTED_S
    while True:
        line = _caller(listener, min(until, unknown), keep.owner, keep.socket)
        if line is None:
            if keep.after_owner and _is_orphan(keep.owner):
                _clear_up(keep.after_owner, environ)
            _leave(keep, "its time is over" if now() >= until else "nobody knows of it, or can reach it")
        word, unknown = _heard(line), until
        if isinstance(word, Stay):
            until = unknown = word.until
            agents.say(line, Done())
        elif isinstance(word, Leave):
            _forget(keep)  # first: who hears the answer may begin another
            agents.say(line, Done())
            _leave(keep, "it was told to")
        elif isinstance(word, Take):
            why = fitness.unfit_now() or files.changed()
            if why is not None:
                print(why, flush=True)  # first: who finds nobody here reads it
                _forget(keep)
                agents.say(line, Refused(why[:TEXT_LIMIT]))
                os._exit(0)
            if _forked():
                listener.close()
                if keep.owner >= 0:
                    os.close(keep.owner)
                return agents.between(line, birth, grown, folder)
        line.close()


def now() -> float:
    """Of the clock by which it ends; the launcher's is the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def _bounded(until: float) -> Iterator[None]:
    """An import that waits for something for ever ends with this process."""
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - now()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if before is not None and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            signal.signal(signal.SIGALRM, before)


def _stay_only(keep: Keep, why_not: Optional[str]) -> None:
    """End where there is a reason."""
    if why_not is not None:
        _leave(keep, why_not)


def _again(
    keep: Keep, birth: Birth, error: learned.Unfit, order: int, listening: int, environ: Mapping[str, str]
) -> NoReturn:
    """Begin anew without the package that is to blame: what is imported stays. Of what is none it ends."""
    _stay_only(keep, birth.why_not() if error.package else str(error))
    birth.again()
    print(f"{error.package} is left out: {error}", flush=True)
    without = (*keep.without, error.package)
    new = keep._replace(without=without, learned=keep.learned if len(without) < TRIES else "")
    with open(os.dup(order), "r+b") as file:
        file.seek(0)
        file.truncate()
        file.write(packet(KEPT_FILES, new))
    for fd in (order, listening, *((keep.owner,) if keep.owner >= 0 else ())):
        os.set_inheritable(fd, True)
    os.execve(sys.executable, getattr(sys, "orig_argv", ()), environ)


def _caller(listener: socket.socket, until: float, owner: int, door: str) -> Optional[socket.socket]:
    """The next of this user; None: nobody came in time, or will: its owner is gone, or its socket."""
    poll = select.poll()  # select() has no room for the numbers of a launcher that has many open
    for fd in (listener.fileno(), *((owner,) if owner >= 0 else ())):
        poll.register(fd, select.POLLIN)
    while True:
        _reap()
        left = until - now()
        if left <= 0:
            return None
        ready = [fd for fd, _ in poll.poll(min(left, LOOK_S) * 1000)]
        if owner in ready:
            return None
        if not ready and not os.path.lexists(door):
            return None
        if not ready:
            continue
        listener.settimeout(0)  # who has connected may have left again
        try:
            line, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError:  # no descriptor is left, say, and it is of no use
            return None
        if now() >= until:  # it slept
            return None
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_PEER))
        if struct.unpack(_PEER, peer)[1] == os.getuid():
            line.settimeout(HEAR_S)
            return line
        line.close()


def _is_orphan(owner: int) -> bool:
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    return bool(poll.poll(0))


def _clear_up(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Nobody else may be there who would: agents that had not begun have not."""
    try:
        os.execve(words[0], list(words), environ)
    except OSError:
        os._exit(1)  # the next launcher does


def _reap() -> None:
    """Processes between this one and agents that have ended. Where nobody collects orphans they would stay for ever."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _heard(line: socket.socket) -> Any:
    try:
        data = line.recv(PACKET_LIMIT)
        return parse(TO_KEPT, data) if data else None
    except (OSError, BadMessage):
        return None


def _forget(keep: Keep) -> None:
    with contextlib.suppress(OSError):
        os.unlink(keep.socket)


def _leave(keep: Keep, why: str) -> NoReturn:
    print(why, flush=True)  # its last line is its last word
    _forget(keep)
    os._exit(0)


def _forked() -> bool:
    """True in the fork. There is none where there is no room for a process."""
    try:
        return os.fork() == 0
    except OSError:
        return False
