"""A fork that serves torch's TCPStore of an attempt, beside the ranks: it is there before the first of them looks for
it, and stays when rank 0 ends.

Called by `gate`. It needs torch.distributed among what the parent has imported.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta
from typing import NoReturn

from trainjob_api.warm_messages import FROM_GATE, PACKET_LIMIT, TEXT_LIMIT, Hosts, Refused, packet

_LOOK_S = 30
"""For its own first look at itself; clients bring time-outs of their own."""


def serve(line: socket.socket, port: int) -> NoReturn:
    """On all addresses, as rank 0 would; until the agent closes the line."""
    distributed = sys.modules.get("torch.distributed")
    new = getattr(distributed, "TCPStore", None)
    store = None
    try:
        if new is None:
            line.send(packet(FROM_GATE, Refused("the warm parent has not imported torch.distributed")))
            os._exit(0)
        try:
            store = new("localhost", port, None, True, timedelta(seconds=_LOOK_S), wait_for_workers=False)
        except Exception as error:  # what torch raises here is another with each of its versions
            line.send(packet(FROM_GATE, Refused(f"no store on port {port}: {error}"[:TEXT_LIMIT])))
            os._exit(0)
        line.send(packet(FROM_GATE, Hosts()))
        while line.recv(PACKET_LIMIT):
            pass
    except OSError:
        pass
    assert store is not None
    os._exit(0)
