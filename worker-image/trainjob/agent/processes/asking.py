"""A rank is asked where it stands (`session.answering`), and tells it itself, also while its main thread is inside a
call that does not end.

Called by `stacks`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Optional

from trainjob.agent.background import within
from trainjob_api import contract
from trainjob_api.standing import STANDING, Standing

_BYTES_LIMIT = 8 << 20
"""A hundred stacks of a hundred frames with long names, and some collectives."""


async def standing_of(rank: int, pid: int, folder: str, wait_s: float) -> Optional[Standing]:
    """None: it does not answer in time (it is stopped, or a call holds the interpreter's lock), or it is another
    process that does.
    """
    try:
        told = await within(_read(os.path.join(folder, contract.STANDING_SOCKET.format(rank=rank))), wait_s)
    # No socket: there was no room. One that nobody listens at: the program has closed it.
    except (OSError, asyncio.TimeoutError, ValueError, RecursionError, AttributeError):
        return None
    return told if told.pid == pid else None


async def _read(path: str) -> Standing:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        text = await reader.read(_BYTES_LIMIT)
        while not reader.at_eof() and len(text) < _BYTES_LIMIT:
            text += await reader.read(_BYTES_LIMIT)
        return STANDING.parse(json.loads(text))
    finally:
        writer.close()
