"""Files of a checkpoint from the agents that hold them in their staging: large ones in pieces, over a few connections.

Used by `gathering`. What came is compared with the manifest's checksum, where there is one, by one taken on the way.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from trainjob.agent.restoring.fetching import (
    STREAMS,
    Fetcher,
    FetchError,
    NotThere,
    Peer,
    Piece,
    Stop,
    joined,
    make_room,
    pieces_of,
)
from trainjob.agent.restoring.sources import Sources, Sum
from trainjob.agent.storing.storage import StorageChild, ask
from trainjob.checkpoint.records.manifest import NoteFile
from trainjob.checkpoint.stores import digest


class FromPeers:
    """Of one checkpoint, into one folder."""

    def __init__(
        self, sources: Sources, storage: Optional[StorageChild], folder: str, threads: Executor, stop: Stop
    ) -> None:
        self._sources = sources
        self._storage = storage
        self._folder = folder
        self._threads = threads
        self._stop = stop
        self._sizes = {f.path: f for f in sources.note.files}

    async def bring(self, files: Sequence[NoteFile]) -> Dict[str, Exception]:
        """Into the folder. What they did not give, and why."""
        by_peer: Dict[Peer, List[NoteFile]] = {}
        for file in files:
            by_peer.setdefault(self._sources.holders[file.path], []).append(file)
        loop = asyncio.get_running_loop()
        refused = await loop.run_in_executor(self._threads, self._make_room, [f.path for f in files])
        shares = [
            (peer, share)
            for peer, wanted in by_peer.items()
            for share in _shared_out([f for f in wanted if f.path not in refused])
        ]
        sums: Dict[str, List[Tuple[Piece, int]]] = {}
        for given in await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._fetch, peer, share) for peer, share in shares)
        ):
            for piece, found in given.items():
                if isinstance(found, Exception):
                    refused[piece.path] = found
                else:
                    sums.setdefault(piece.path, []).append((piece, found))
        unseen = {
            path: self._sources.sums[path]
            for path, found in sums.items()
            if path not in refused and not self._agrees(path, found)
        }
        for path in await self._compared(unseen):
            refused[path] = FetchError(
                f"{path} came from {self._sources.holders[path].address} with other bytes than the manifest says"
            )
        return refused

    def _make_room(self, paths: Sequence[str]) -> Dict[str, Exception]:
        """In a thread, before several connections write into one file. Where that fails: why."""
        refused: Dict[str, Exception] = {}
        for path in paths:
            try:
                make_room(os.path.join(self._folder, path))
            except FetchError as error:
                refused[path] = error
        return refused

    def _fetch(self, peer: Peer, pieces: Sequence[Piece]) -> Dict[Piece, Any]:
        """In a thread: the checksum of each piece that came, or why it did not."""
        found: Dict[Piece, Any] = {}
        id_ = str(self._sources.note.id)
        with Fetcher(peer, self._stop) as fetcher:
            for piece in pieces:
                try:
                    target = os.path.join(self._folder, piece.path)
                    found[piece] = fetcher.fetch(id_, piece, target, self._algorithm(piece.path))
                except (FetchError, NotThere) as error:
                    found[piece] = error
                    if isinstance(error, FetchError):
                        return {**dict.fromkeys(pieces, error), **found}
        return found

    def _algorithm(self, path: str) -> Optional[str]:
        """By what a file is checksummed on its way; None: nobody knows its checksum."""
        if path not in self._sources.sums:
            return None
        algorithm = self._sources.sums[path][1]
        return algorithm if digest.quick(algorithm) else digest.CRC32

    def _agrees(self, path: str, found: Sequence[Tuple[Piece, int]]) -> bool:
        """Whether it is known by now that this is the file; else the storage child looks, which knows the other
        algorithms.
        """
        algorithm = self._algorithm(path)
        return algorithm is None or self._sources.sums[path] == (
            digest.text(algorithm, joined(found, algorithm)),
            algorithm,
        )

    async def _compared(self, sums: Mapping[str, Sum]) -> List[str]:
        """Paths in our folder that are not what the manifest says."""
        if not sums or self._storage is None:
            return []
        files = [[path, self._sizes[path].size, *found] for path, found in sums.items()]
        return list((await ask(self._storage, "compare", {"folder": self._folder, "files": files}))["different"])


def _shared_out(files: Sequence[NoteFile]) -> List[List[Piece]]:
    """Files of one peer among a few connections, by size."""
    pieces = [piece for f in files for piece in pieces_of(f.path, f.size)]
    shares: List[List[Piece]] = [[] for _ in range(min(STREAMS, len(pieces)))]
    sizes = [0] * len(shares)
    for piece in sorted(pieces, key=lambda p: -p.length):
        least = sizes.index(min(sizes))
        shares[least].append(piece)
        sizes[least] += piece.length + 1
    return shares
