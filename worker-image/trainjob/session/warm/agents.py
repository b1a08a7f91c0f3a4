"""How a process that is kept becomes an agent's parent: the process between, the agent, the agent's warm parent.

Called by `kept`, in a fork of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from typing import Any, List, Mapping, NoReturn, Optional, Sequence, Tuple

from trainjob.session import tie
from trainjob.session.warm import memory, parent, title
from trainjob.session.warm.birth import Birth
from trainjob_api import contract
from trainjob_api.typed import BadMessage
from trainjob_api.warm_messages import (
    BECOMES,
    FROM_KEPT,
    KEPT_FILES,
    PACKET_LIMIT,
    TO_KEPT,
    Agent,
    Ended,
    Start,
    Took,
    packet,
    parse,
)

_MOST_FDS = 16


def read(fd: int) -> Any:
    """What is in a file that somebody else has filled."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return parse(KEPT_FILES, file.read())


def say(line: socket.socket, word: Any) -> None:
    """To whoever may have gone."""
    with contextlib.suppress(OSError):
        line.send(packet(FROM_KEPT, word))


def between(line: socket.socket, birth: Birth, grown: parent.Grown, folder: Optional[str]) -> Sequence[str]:
    """The process between what is kept and an agent: tells the agent's end. Returns in a rank alone."""
    memory.stay()
    line.settimeout(None)
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid == 0:
        agent, fds = _told(line)
        return _agent(agent, fds, birth, grown, folder)
    say(line, Took(pid, os.getpid()))
    _, status = os.waitpid(pid, 0)
    say(line, Ended(status))
    os._exit(0)


def _told(line: socket.socket) -> Tuple[Agent, List[int]]:
    """What the agent is, once somebody wants it."""
    try:
        data, fds, _, _ = socket.recv_fds(line, PACKET_LIMIT, _MOST_FDS)
        if data and isinstance(parse(TO_KEPT, data), Start):
            line.close()
            agent: Agent = read(fds[0])
            if len(fds) == 3 + len(agent.numbers):  # fewer come where there is no room for them
                return agent, list(fds)
    except (OSError, IndexError, BadMessage):
        pass
    os._exit(0)


def _agent(agent: Agent, fds: List[int], birth: Birth, grown: parent.Grown, folder: Optional[str]) -> Sequence[str]:
    """Fork the warm parent, and become the agent. Returns in a rank alone."""
    says = fds[2]
    try:
        os.setsid()
        os.chdir(agent.cwd)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for fd in fds:
                os.close(fd)
            if birth.umask_is_same:
                os.umask(agent.umask)
            birth.umask = agent.umask
            os.setsid()
            tie.tie_to(own)
            title.show((sys.executable, "-m", "trainjob.session.rank", contract.WARM), agent.environ)
            return parent.adopted(theirs, own, grown, folder)
        birth.umask = agent.umask
        birth.again()
        clear = max((2, *agent.numbers)) + 1
        says = fcntl.fcntl(says, fcntl.F_DUPFD_CLOEXEC, clear)
        line = _only(ours.fileno(), says, fds[1], dict(zip(agent.numbers, fds[3:])), clear)
        environ = {**agent.environ, contract.ENV_KEPT_PARENT: f"{line}:{pid}"}
        os.write(says, BECOMES)
        os.execve(agent.argv[0], agent.argv, environ)
    except OSError as error:
        _fail(says, str(error))


def _fail(says: int, why: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(says, why.encode(errors="replace"))
    os._exit(127)


def _only(line: int, says: int, output: int, inherited: Mapping[int, int], clear: int) -> int:
    """Have the standard streams, these under their numbers, and the line under the one that is returned, above
    `clear`; `says` goes as the program begins.
    """
    own = fcntl.fcntl(line, fcntl.F_DUPFD, clear)
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, clear) for number, fd in inherited.items()}
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number, fd in high.items():
        os.dup2(fd, number)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in (own, says) and fd not in inherited:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)
    return own
