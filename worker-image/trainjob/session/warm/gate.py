"""A fork at its gate: it is the agent's child, leads a session of its own, and waits for its order."""

from __future__ import annotations

import os
import socket
from typing import Tuple

from trainjob.session import rank
from trainjob_api.warm_messages import (
    FROM_GATE,
    ORDERS,
    PACKET_LIMIT,
    TO_GATE,
    Go,
    Here,
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
        rank.tie_to(agent)
        line.send(packet(FROM_GATE, Here(os.getpid())))
        data, fds, _, _ = socket.recv_fds(line, PACKET_LIMIT, 2)
    except OSError:
        os._exit(1)
    if not data or len(fds) != 2 or not isinstance(parse(TO_GATE, data), Go):
        os._exit(0)
    with open(fds[0], "rb") as file:
        file.seek(0)
        order: Order = parse(ORDERS, file.read())
    return order, fds[1]
