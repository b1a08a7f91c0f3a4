"""Files of staged checkpoints, as this agent serves them to others: on the loop, their bytes by the kernel and their
checksums in a thread.

Called by `work` for who has proven itself (`wire.peers`). The other end is `fetching`.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Mapping, MutableMapping, Optional, Tuple

from trainjob.agent.storing.saving import Saving
from trainjob.agent.wire.for_files import FROM_FETCHER, FROM_SERVER, End, File, FromServer, Get, Refused
from trainjob.agent.wire.frames import FrameConnection
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.staging.stamp import Stamp
from trainjob.checkpoint.stores import digest
from trainjob_api import wire
from trainjob_api.typed import BadMessage

CHUNK = 1024 * 1024


class FileServer:
    """What this agent serves. What lies here of a checkpoint is looked up once for all of its files that are asked
    for together.
    """

    def __init__(self, saving: Saving) -> None:
        self._saving = saving
        self._held: MutableMapping[FrameConnection, Tuple[str, Mapping[str, Stamp]]] = weakref.WeakKeyDictionary()

    async def give(self, connection: FrameConnection, message: wire.Message) -> None:
        """Answer a GET, also one that makes no sense: it comes from outside, and is no fault of ours."""
        try:
            await self._give(connection, FROM_FETCHER.parse(message))
        except (BadMessage, ValueError, StagingError) as error:
            say(connection, Refused(f"this cannot be answered: {error}"))

    async def _give(self, connection: FrameConnection, asked: Get) -> None:
        id_, path = asked.id, asked.path
        known = self._held.get(connection)
        if known is None or known[0] != id_:
            held = await self._saving.held_of(id_)
            known = self._held[connection] = (id_, {} if held is None else held.stamps)
        if path in known[1]:
            await serve(connection, os.path.join(self._saving.folder_of(id_), path), asked, known[1][path])
        else:
            say(connection, Refused("it does not lie here"))


async def serve(connection: FrameConnection, path: str, asked: Get, stamp: Optional[Stamp] = None) -> None:
    """Send what a GET asks for of one file; if it cannot be read, or does not look as its stamp says, say so."""
    loop = asyncio.get_running_loop()

    def changed(file: int) -> bool:
        return stamp is not None and Stamp.of(os.fstat(file)) != stamp

    try:
        with open(path, "rb") as file:  # noqa: ASYNC230 - opened once, its bytes are read by the kernel and by a thread
            if changed(file.fileno()):
                say(connection, Refused(f"{path} was changed after its release"))
                return
            size = os.fstat(file.fileno()).st_size
            end = min(asked.start + asked.length, size)
            count = max(0, end - asked.offset)
            algorithm = asked.sum if asked.sum and digest.quick(asked.sum) else digest.CRC32
            summing = (
                loop.run_in_executor(None, _sum, file.fileno(), asked.start, end, algorithm) if asked.sum else None
            )
            say(connection, File(size, count, algorithm))
            try:
                await connection.send_file(file, asked.offset, count)
            finally:
                checksum = None if summing is None else await summing
            if changed(file.fileno()):  # what was sent may be of both; the next GET is refused
                say(connection, Refused(f"{path} was changed while it was sent"))
                return
        say(connection, End(checksum))
    except OSError as error:
        say(connection, Refused(f"{path}: {error.strerror or error}"))


def say(connection: FrameConnection, word: FromServer) -> None:
    """Answer who fetches."""
    connection.send_frame(FROM_SERVER.encode(word))


def _sum(file: int, start: int, end: int, algorithm: str) -> int:
    buffer, checksum = bytearray(CHUNK), 0
    while start < end:
        count = os.preadv(file, [memoryview(buffer)[: min(CHUNK, end - start)]], start)
        if not count:
            break
        checksum, start = digest.update(algorithm, memoryview(buffer)[:count], checksum), start + count
    return checksum
