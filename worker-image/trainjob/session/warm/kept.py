"""A warm parent that stays when its job has ended, for the next one (`tj run --keep-warm`).

Started by the launcher (`launch.local.kept`), which gives it a listening socket and the file of its `Keep`. Ranks are
children of their agent, and no process can be given to another parent: so agents are started here. A fork of this
process waits until the launcher, which may have given up by now, says `Start`; then it forks the warm parent, as a
child of its own, and executes the agent in its own place. Between it and this process stands a third, which tells the
launcher the agent's end: what is kept may go while jobs run. Descriptors of a job are sent to that job's process alone.

The one of a job's own workers (`launch.local.kept.shared`) is the same, and ends with its launcher.

One thread, nothing of the user's own code. It ends when its time is over, also in the middle of an import, when it is
told to, when something that it has imported is another by now (`unchanged`), and when no note tells others of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import AbstractSet, Any, Iterator, List, Mapping, NoReturn, Optional, Sequence, Tuple

from trainjob.session import tie
from trainjob.session.warm import fitness, learned, memory, parent, title
from trainjob.session.warm.unchanged import Files, Names
from trainjob_api import contract
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    FROM_KEPT,
    KEPT_FILES,
    PACKET_LIMIT,
    TEXT_LIMIT,
    TO_KEPT,
    Agent,
    Done,
    Ended,
    Keep,
    Leave,
    Refused,
    Start,
    Stay,
    Take,
    Took,
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
_MOST_FDS = 16
_PEER = "3i"
"""SO_PEERCRED: pid, uid, gid."""


def serve(listening: int, order: int, booted: AbstractSet[str], folder: Optional[str]) -> Sequence[str]:
    """In a rank: the command that it is to run. The kept process itself ends here. The rest as of `parent.serve`."""
    environ, since = dict(os.environ), time.time_ns()
    keep: Keep = _read(order)
    parent.settle(first_to_go=True)
    if keep.tmp:
        os.environ["TMPDIR"] = keep.tmp
    wishes = parent.Wishes(keep.modules, keep.folder, keep.optional, keep.learned, keep.without, beside_training=False)
    names = Names()
    with _bounded(keep.until), names.watched():
        try:
            grown = parent.grow(wishes, booted)
        except learned.Unfit as error:
            _again(keep, error, order, listening, environ)
    os.close(order)
    listener, files = socket.socket(fileno=listening), Files(since, names)
    until, unknown = keep.until, now() + NOTED_S
    while True:
        line = _caller(listener, min(until, unknown), keep.owner)
        if line is None:
            _leave(keep, "its time is over" if now() >= until else "nobody knows of it")
        word, unknown = _heard(line), until
        if isinstance(word, Stay):
            until = unknown = word.until
            _say(line, Done())
        elif isinstance(word, Leave):
            _forget(keep)  # first: who hears the answer may begin another
            _say(line, Done())
            _leave(keep, "it was told to")
        elif isinstance(word, Take):
            why = fitness.unfit_now() or files.changed()
            if why is not None:
                print(why, flush=True)  # first: who finds nobody here reads it
                _forget(keep)
                _say(line, Refused(why[:TEXT_LIMIT]))
                os._exit(0)
            if _forked():
                listener.close()
                if keep.owner >= 0:
                    os.close(keep.owner)
                return _between(line, grown, folder)
        line.close()


def now() -> float:
    """Of the clock by which it ends; the launcher's is the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def _bounded(until: float) -> Iterator[None]:
    """An import that waits for something for ever ends with this process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - now()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _read(fd: int) -> Any:
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return parse(KEPT_FILES, file.read())


def _again(keep: Keep, error: learned.Unfit, order: int, listening: int, environ: Mapping[str, str]) -> NoReturn:
    """Begin anew without the package that is to blame: what is imported stays. Of what is none it ends."""
    if not error.package:
        _leave(keep, str(error))
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


def _caller(listener: socket.socket, until: float, owner: int) -> Optional[socket.socket]:
    """The next of this user; None: nobody came in time, or its owner is gone."""
    waits = [listener.fileno(), *((owner,) if owner >= 0 else ())]
    while True:
        _reap()
        left = until - now()
        if left <= 0:
            return None
        ready = select.select(waits, [], [], min(left, LOOK_S))[0]
        if owner in ready:
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


def _say(line: socket.socket, word: Any) -> None:
    with contextlib.suppress(OSError):
        line.send(packet(FROM_KEPT, word))


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


def _between(line: socket.socket, grown: parent.Grown, folder: Optional[str]) -> Sequence[str]:
    """The process between what is kept and an agent: tells the agent's end. Returns in a rank alone."""
    memory.stay()
    line.settimeout(None)
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid == 0:
        agent, fds = _told(line)
        return _agent(agent, fds, grown, folder)
    _say(line, Took(pid))
    _, status = os.waitpid(pid, 0)
    _say(line, Ended(status))
    os._exit(0)


def _told(line: socket.socket) -> Tuple[Agent, List[int]]:
    """What the agent is, once somebody wants it."""
    try:
        data, fds, _, _ = socket.recv_fds(line, PACKET_LIMIT, _MOST_FDS)
        if data and isinstance(parse(TO_KEPT, data), Start):
            line.close()
            return _read(fds[0]), list(fds)
    except (OSError, IndexError, BadMessage):
        pass
    os._exit(0)


def _agent(agent: Agent, fds: List[int], grown: parent.Grown, folder: Optional[str]) -> Sequence[str]:
    """Fork the warm parent, and become the agent. Returns in a rank alone."""
    try:
        os.setsid()
        os.chdir(agent.cwd)
        os.umask(agent.umask)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for fd in fds:
                os.close(fd)
            os.setsid()
            tie.tie_to(own)
            title.show((sys.executable, "-m", "trainjob.session.rank", contract.WARM), agent.environ)
            return parent.adopted(theirs, own, grown, folder)
        os.dup2(fds[1], 1)
        os.dup2(fds[1], 2)
        line = _only(ours.fileno(), dict(zip(agent.numbers, fds[2:])))
        environ = {**agent.environ, contract.ENV_KEPT_PARENT: f"{line}:{pid}"}
        os.execve(agent.argv[0], agent.argv, environ)
    except OSError as error:
        print(f"agent | it cannot be executed: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def _only(line: int, inherited: Mapping[int, int]) -> int:
    """Have the standard streams, these under their numbers, and the line under the one that is returned."""
    clear = max((2, *inherited)) + 1
    own = fcntl.fcntl(line, fcntl.F_DUPFD, clear)
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, clear) for number, fd in inherited.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != own and fd not in inherited:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)
    return own
