"""A fork at its gate: it is the agent's child, leads a session of its own, and waits for its order: to be a rank, or
the store of all ranks.
"""

from __future__ import annotations

import os
import socket
from typing import Tuple

from trainjob.session import tie
from trainjob.session.warm import memory, store
from trainjob_api.warm_messages import (
    FROM_GATE,
    ORDERS,
    PACKET_LIMIT,
    TO_GATE,
    Go,
    Here,
    Host,
    Order,
    Refused,
    packet,
    parse,
)


def wait(line: socket.socket, agent: int) -> Tuple[Order, int]:
    """The order, and the descriptor of its output. Does not return if there will be none."""
    try:
        os.setsid()
        if os.getppid() != agent:
            line.send(
                packet(FROM_GATE, Refused("its forks do not become the agent's children (PR_SET_CHILD_SUBREAPER)"))
            )
            os._exit(1)
        tie.tie_to(agent)
        line.send(packet(FROM_GATE, Here(os.getpid())))
        data, fds, _, _ = socket.recv_fds(line, PACKET_LIMIT, 2)
    except OSError:
        os._exit(1)
    word = parse(TO_GATE, data) if data else None
    memory.stay()
    if isinstance(word, Host):
        store.serve(line, word.port)
    if not isinstance(word, Go):
        os._exit(0)
    if len(fds) != 2:  # no descriptor is left: who gave the order takes this for the rank
        os._exit(1)
    with open(fds[0], "rb") as file:
        file.seek(0)
        order: Order = parse(ORDERS, file.read())
    return order, fds[1]
