"""A rank's collectives, as it tells them itself (`session.flight_recorder`), and so also while it is inside one that
does not end.

Called by `member` where it is asked where its ranks stand.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Dict, Iterable, Optional, Tuple

from trainjob.agent.background import within
from trainjob_api import contract
from trainjob_api.recorded_calls import RECORDED, Call

WAIT_S = 1.0
_BYTES_LIMIT = 256 * 1024


async def recorded_of(ranks: Iterable[int], folder: str) -> Dict[int, Tuple[Call, ...]]:
    """Of those that have a record and answer in WAIT_S."""
    asked = list(ranks)
    found = await asyncio.gather(*(_asked(os.path.join(folder, contract.FLIGHT_SOCKET.format(rank=r))) for r in asked))
    return {rank: calls for rank, calls in zip(asked, found) if calls is not None}


async def _asked(path: str) -> Optional[Tuple[Call, ...]]:
    try:
        return await within(_read(path), WAIT_S)
    # No socket: it has no process group. No answer: it is stopped, or holds the interpreter's lock.
    except (OSError, asyncio.TimeoutError, ValueError, RecursionError, AttributeError):
        return None


async def _read(path: str) -> Tuple[Call, ...]:
    reader, writer = await asyncio.open_unix_connection(path, limit=_BYTES_LIMIT)
    try:
        text = b""
        while True:
            piece = await reader.read(_BYTES_LIMIT)
            text += piece
            if not piece or len(text) > _BYTES_LIMIT:
                break
        return RECORDED.parse(json.loads(text)).calls
    finally:
        writer.close()
