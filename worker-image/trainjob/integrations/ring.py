"""Each rank's word to all the others, over one short-lived socket of rank 0.

For libraries with transports of their own: they need addresses and ports of all ranks before they can speak
at all, and nothing of torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from typing import Any, Dict, List

from trainjob.session import calls

_LIMIT_S = 300.0
"""For all ranks to have called; a rank that ends meanwhile ends the attempt, and with it this wait."""
_HELLO_S = 10.0
_ADDRESS = "MASTER_ADDR"


def own_address() -> str:
    """The address under which the others reach this rank's machine: that of its way to rank 0."""
    with socket.socket(_family(os.environ[_ADDRESS]), socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ[_ADDRESS], 9))  # sends nothing
        return str(probe.getsockname()[0])


def gathered(word: Any) -> List[Any]:
    """The `word` (JSON) of each rank, in the order of the ranks. Every rank calls it. Raises OSError when rank 0 cannot
    be reached.
    """
    context = calls.get_context()
    if context.world_size == 1:
        return [word]
    if context.rank == 0:
        return _serve(word, context.world_size)
    port, key = calls.broadcast_from_rank_zero((0, ""))
    with socket.create_connection((os.environ[_ADDRESS], port), timeout=_LIMIT_S) as line:
        _send(line, {"key": key, "rank": context.rank, "word": word})
        return list(_received(line))


def _serve(word: Any, world_size: int) -> List[Any]:
    """Strangers, who have not heard the key from the agents, are hung up on."""
    words: Dict[int, Any] = {0: word}
    key, deadline = secrets.token_hex(16), time.monotonic() + _LIMIT_S
    with contextlib.ExitStack() as lines:
        server = lines.enter_context(socket.create_server((own_address(), 0), family=_family(os.environ[_ADDRESS])))
        calls.broadcast_from_rank_zero((server.getsockname()[1], key))
        members: List[socket.socket] = []
        while len(words) < world_size:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            line, _ = server.accept()
            line.settimeout(_HELLO_S)
            said = _hello(line)
            if said.get("key") != key or said.get("rank") not in range(1, world_size):
                line.close()
                continue
            words[said["rank"]] = said["word"]
            members.append(lines.enter_context(line))
        answer = [words[rank] for rank in range(world_size)]
        for line in members:
            _send(line, answer)
    return answer


def _hello(line: socket.socket) -> Dict[str, Any]:
    try:
        said = _received(line)
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def joined(address: str, port: int) -> str:
    """As libraries want an address and its port."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def free_port() -> int:
    """A port of this machine that was free a moment ago: for a library that insists on opening it itself."""
    with socket.socket(_family(os.environ[_ADDRESS])) as one:
        one.bind((own_address(), 0))
        return int(one.getsockname()[1])


def _family(address: str) -> int:
    return int(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0])


def _send(line: socket.socket, content: Any) -> None:
    line.sendall(json.dumps(content).encode() + b"\n")


def _received(line: socket.socket) -> Any:
    with line.makefile("rb") as file:
        return json.loads(file.readline(1 << 20))
