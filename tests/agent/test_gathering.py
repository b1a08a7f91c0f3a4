"""Files of one checkpoint from peers and storage: a peer that fails is no verdict as long as storage has the file,
and each file comes once.
"""

from __future__ import annotations

import asyncio
import shutil
import zlib
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import note_of, read_tree, write_tree
from support.reading import committed, overwrite, store_shares
from trainjob.agent.restoring import fetching
from trainjob.agent.restoring.fetching import Peer
from trainjob.agent.restoring.gathering import Damaged, Gathering
from trainjob.agent.restoring.serving import say
from trainjob.agent.restoring.sources import Sources
from trainjob.agent.storing.storage import StorageError
from trainjob.agent.wire.for_files import End, File, Refused
from trainjob.agent.wire.frames import FrameConnection
from trainjob.agent.wire.peers import PeerServer
from trainjob.checkpoint.errors import CheckpointError
from trainjob.checkpoint.staging.stamp import Stamp
from trainjob.checkpoint.storage_child import bringing
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores import digest
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing
from trainjob_api import wire

FILES = {"a": (b"a" * 100, 0), "deep/b": (b"b" * 100, 1), "c": (b"c" * 100, 2)}
NOTE = note_of("1-1-1", {path: (len(data), rank) for path, (data, rank) in FILES.items()})
SUMS = {path: (f"{zlib.crc32(data):08x}", "crc32") for path, (data, _) in FILES.items()}
COMMITTED = {"checkpoint": "1-1-1"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)
    bringing._manifests.clear()


class Child:
    """The storage child's operations, in this process; notes what was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.deaths = 0
        """How often it is killed while it works."""

    async def call(self, op: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((op, tuple(fields.get("paths") or ())))
        if self.deaths:
            self.deaths -= 1
            raise StorageError("child", "the storage child ended while it worked")
        try:
            return await asyncio.to_thread(perform, {"op": op, "storage": self._store.uri(), **fields}, nothing)
        except CheckpointError as error:
            raise StorageError(error.kind, str(error)) from error


class PeerAgent:
    """An agent that holds these files."""

    def __init__(self, held: Mapping[str, bytes]) -> None:
        self.held = dict(held)
        self.asked: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def give(self, connection: FrameConnection, message: wire.Message) -> None:
        path = str(message["path"])
        self.asked.append(path)
        if path not in self.held:
            say(connection, Refused("it does not lie here"))
            return
        data = self.held[path]
        say(connection, File(len(data), len(data), "crc32"))
        assert connection._transport is not None
        connection._transport.write(data)
        say(connection, End(zlib.crc32(data)))


Test = Callable[[Gathering, PeerAgent, "Child | None"], Awaitable[None]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    from trainjob.checkpoint.stores.opening import open_store

    return open_store(str(tmp_path / "store"))


def gathering(
    tmp_path: Path,
    test: Test,
    *,
    peer: PeerAgent,
    store: Store | None,
    held: str = "a deep/b",
    reachable: bool = True,
    **sources: Any,
) -> None:
    sources = {"staged": "", "own": {}, **sources}

    async def run() -> None:
        server = PeerServer(peer.give)
        await server.start("127.0.0.1")
        server.know("secret", 1, None)
        threads = ThreadPoolExecutor(4)
        address = Peer(f"127.0.0.1:{server.port}", "secret", 1)
        if not reachable:
            server.close()
        child = None if store is None else Child(store)
        storage: Any = child
        work = Gathering(
            Sources(NOTE, holders=dict.fromkeys(held.split(), address), **sources),
            storage,
            str(tmp_path / "into"),
            threads,
        )
        try:
            await test(work, peer, child)
        finally:
            work.close()
            server.close()
            threads.shutdown()

    asyncio.run(run())


def here(tmp_path: Path) -> dict[str, bytes]:
    return {
        path.relative_to(tmp_path / "into").as_posix(): path.read_bytes()
        for path in (tmp_path / "into").rglob("*")
        if path.is_file()
    }


WHOLE = {path: data for path, (data, _) in FILES.items()}


def test_each_file_comes_once_from_the_nearest_place_however_many_ask(tmp_path: Path, store: Store) -> None:
    committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await asyncio.gather(*(work.gather(paths) for paths in (["a"], ["c", "a"], work.paths, work.paths)))
        assert sorted(peer.asked) == ["a", "deep/b"]
        assert child is not None and child.asked == [("verify", ("c",))]

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store, committed=COMMITTED, sums=SUMS)
    assert here(tmp_path) == WHOLE


@pytest.mark.parametrize("trouble", ["unreachable", "refused", "other bytes"])
def test_what_a_peer_does_not_give_comes_from_storage(tmp_path: Path, store: Store, trouble: str) -> None:
    committed(store, tmp_path / "staged", FILES)
    peer = PeerAgent({**WHOLE, "a": b"!" * 100} if trouble == "other bytes" else {"deep/b": WHOLE["deep/b"]})

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(work.paths)
        assert child is not None
        from_storage = {path for op, paths in child.asked if op == "verify" for path in paths}
        assert from_storage == (set(WHOLE) if trouble == "unreachable" else {"a", "c"})

    gathering(
        tmp_path, test, peer=peer, store=store, reachable=trouble != "unreachable", committed=COMMITTED, sums=SUMS
    )
    assert here(tmp_path) == WHOLE


def test_bytes_of_a_peer_are_compared_by_the_manifests_own_algorithm(tmp_path: Path, store: Store) -> None:
    committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(["a"])
        assert child is not None and [op for op, _ in child.asked] == ["compare", "verify"], (
            "it has another checksum, and storage has the right bytes"
        )

    gathering(
        tmp_path,
        test,
        peer=PeerAgent(WHOLE),
        store=store,
        committed=COMMITTED,
        sums={**SUMS, "a": ("0" * 16, "crc64nvme")},
    )
    assert here(tmp_path) == {"a": WHOLE["a"]}


@pytest.mark.parametrize(("quick", "asked"), [(True, []), (False, ["compare"])])
def test_only_who_cannot_checksum_what_comes_has_it_read_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, quick: bool, asked: list[str]
) -> None:
    monkeypatch.setattr(digest, "quick", lambda algorithm: quick or algorithm == digest.CRC32)
    right = digest.text(digest.CRC64NVME, digest.update(digest.CRC64NVME, WHOLE["a"]))

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(["a"])
        assert child is not None and [op for op, _ in child.asked] == asked

    gathering(
        tmp_path,
        test,
        peer=PeerAgent(WHOLE),
        store=store,
        committed=COMMITTED,
        sums={**SUMS, "a": (right, "crc64nvme")},
    )
    assert here(tmp_path) == {"a": WHOLE["a"]}


def test_what_is_not_committed_yet_comes_from_finished_shares(tmp_path: Path, store: Store) -> None:
    for path, (data, _) in FILES.items():
        (tmp_path / "staged" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "staged" / path).write_bytes(data)
    store_shares(store, tmp_path / "staged", NOTE)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(work.paths)
        assert child is not None and child.asked == [("fetch", ("c",))]

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store)
    assert here(tmp_path) == WHOLE


def test_damage_on_storage_is_damage(tmp_path: Path, store: Store) -> None:
    uri = committed(store, tmp_path / "staged", FILES)
    overwrite(uri, "c", b"!" * 100)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(["a"])
        with pytest.raises(Damaged, match="c is damaged"):
            await work.gather(["c"])

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store, committed=COMMITTED, sums=SUMS)


def test_what_neither_peers_nor_storage_give_is_damage_only_if_a_peer_says_that_it_is_gone(
    tmp_path: Path, store: Store
) -> None:
    async def gone(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        with pytest.raises(Damaged, match="does not lie here"):
            await work.gather(["a"])

    async def silent(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        with pytest.raises(StorageError, match="cannot be brought to this worker"):
            await work.gather(["a"])

    for there in (store, None):
        gathering(tmp_path, gone, peer=PeerAgent({}), store=there)
        gathering(tmp_path, silent, peer=PeerAgent({}), store=there, reachable=False)


def test_a_failure_is_tried_anew_by_the_next_who_asks(tmp_path: Path) -> None:
    peer = PeerAgent({})

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        with pytest.raises(Damaged):
            await work.gather(["a"])
        peer.held["a"] = WHOLE["a"]
        await work.gather(["a"])
        with pytest.raises(KeyError):
            await work.gather(["../outside"])

    gathering(tmp_path, test, peer=peer, store=None)
    assert here(tmp_path) == {"a": WHOLE["a"]}


@pytest.mark.parametrize("deaths", [2, 3])
def test_a_storage_child_that_is_killed_is_asked_again_but_not_for_ever(
    tmp_path: Path, store: Store, deaths: int
) -> None:
    committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        assert child is not None
        child.deaths = deaths
        if deaths == 3:
            with pytest.raises(StorageError, match="the storage child ended"):
                await work.gather(["c"])
        else:
            await work.gather(["c"])

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store, committed=COMMITTED, sums=SUMS)


def stamps(tmp_path: Path, *paths: str) -> dict[str, Stamp]:
    """Of what lies in the own staging."""
    found = {path: Stamp.at(str(tmp_path / "staged" / path)) for path in paths}
    return {path: stamp for path, stamp in found.items() if stamp is not None}


def from_own_staging(tmp_path: Path, test: Test, store: Store, **sources: Any) -> None:
    """Of a committed checkpoint that lies there, as far as a and c go."""
    gathering(
        tmp_path,
        test,
        peer=PeerAgent(WHOLE),
        store=store,
        staged=str(tmp_path / "staged"),
        own=stamps(tmp_path, "a", "c"),
        committed=COMMITTED,
        sums=SUMS,
        **sources,
    )


def test_what_has_left_the_own_staging_is_brought_again(tmp_path: Path, store: Store) -> None:
    committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(["a"])
        assert (tmp_path / "into/a").is_symlink() and peer.asked == []
        shutil.rmtree(tmp_path / "staged")
        await work.gather(["a", "c"])
        assert here(tmp_path) == {"a": WHOLE["a"], "c": WHOLE["c"]}
        assert peer.asked == ["a"] and child is not None and child.asked == [("verify", ("c",))]

    from_own_staging(tmp_path, test, store)


@pytest.mark.parametrize("apart", [False, True])
def test_what_leaves_the_own_staging_any_moment_is_given_as_files_that_stay(
    tmp_path: Path, store: Store, apart: bool
) -> None:
    committed(store, tmp_path / "staged", FILES)
    leaves = False

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        nonlocal leaves
        await work.gather(["a", "c"], apart)
        (tmp_path / "staged/c").unlink()
        leaves = True
        await work.gather(["a", "c"], apart)
        shutil.rmtree(tmp_path / "staged")
        assert here(tmp_path) == {"a": WHOLE["a"], "c": WHOLE["c"]}
        assert child is not None and child.asked == [("verify", ("c",))] and peer.asked == []

    from_own_staging(tmp_path, test, store, is_stored=lambda: True, may_go=lambda: leaves)


def test_a_mounted_checkpoint_is_compared_and_read_where_it_lies(tmp_path: Path, store: Store) -> None:
    uri = committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(["a"])
        assert (tmp_path / "into/a").resolve() == Path(uri, "a") and peer.asked == []

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store, held="", committed=COMMITTED)


def write_to_everything(tmp_path: Path) -> None:
    for path in (tmp_path / "into").rglob("*"):
        if path.is_file():
            path.write_bytes(b"X" * path.stat().st_size)


@pytest.mark.parametrize("read_before", [True, False])
def test_nobody_writes_to_a_mounted_checkpoint_through_the_folder_that_is_given_out(
    tmp_path: Path, store: Store, read_before: bool
) -> None:
    uri = committed(store, tmp_path / "staged", FILES)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        if read_before:
            await work.gather(["a"])
        await work.gather(work.paths, apart=True)
        assert here(tmp_path) == WHOLE
        write_to_everything(tmp_path)
        assert {path: Path(uri, path).read_bytes() for path in WHOLE} == WHOLE
        await work.gather(work.paths, apart=True)
        assert here(tmp_path) == WHOLE, "what somebody wrote to is brought again"

    gathering(tmp_path, test, peer=PeerAgent(WHOLE), store=store, held="", committed=COMMITTED)


@pytest.mark.parametrize("stored", [True, False])
def test_what_nobody_else_has_is_given_out_as_a_copy_where_rights_stop_nobody(
    tmp_path: Path, store: Store, stored: bool
) -> None:
    staged = write_tree(tmp_path / "staged", WHOLE)
    kept = stamps(tmp_path, *WHOLE)

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(work.paths, apart=True)
        assert here(tmp_path) == WHOLE
        assert (tmp_path / "into/a").is_symlink() == stored
        write_to_everything(tmp_path)
        assert (read_tree(staged) == WHOLE) == (not stored)

    gathering(
        tmp_path, test, peer=PeerAgent(WHOLE), store=store, held="", staged=str(staged), own=kept,
        is_stored=lambda: stored,
    )  # fmt: skip


def test_what_somebody_wrote_to_in_the_own_staging_comes_from_storage(tmp_path: Path, store: Store) -> None:
    committed(store, tmp_path / "staged", FILES)
    kept = stamps(tmp_path, *WHOLE)
    (tmp_path / "staged/a").write_bytes(b"X" * len(WHOLE["a"]))

    async def test(work: Gathering, peer: PeerAgent, child: Child | None) -> None:
        await work.gather(work.paths)
        assert here(tmp_path) == WHOLE

    # Nobody asked storage: all of it lay here when the attempt began.
    gathering(tmp_path, test, peer=PeerAgent({}), store=store, held="", staged=str(tmp_path / "staged"), own=kept)
