"""Every fault at every request of a save with its commit, of a restore, a retention and a claim: nothing torn, nothing lost, always an end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.checkpoint import Job, read_tree
from support.s3_faults import KINDS, Faults
from trainjob.checkpoint import errors, runs, s3_transfer, stored
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.identity import CheckpointId
from trainjob.checkpoint.manifest import Manifest
from trainjob.checkpoint.retention import Policy
from trainjob.checkpoint.retire import Retainer
from trainjob.checkpoint.settle import settle
from trainjob.checkpoint.shares import commit
from trainjob.checkpoint.store import Store, open_store
from trainjob.checkpoint.transfer import nothing

TIMEOUT_S = 0.25
Check = Callable[[Path, Store, Store], None]


class World:
    """One folder of the server, seen directly and through the faults."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
        self._monkeypatch = monkeypatch
        self.place: str | None = None
        """The one folder for all, for work that changes nothing."""
        self.faults = faults

    def stores(self, uri: str | None = None, **settings: float) -> tuple[Store, Store]:
        """(direct, through the faults), of an unused folder."""
        place = uri or self.place or s3.fresh_uri()
        s3.use(self._monkeypatch, self.faults.endpoint, **({"timeout_s": TIMEOUT_S} | settings))
        spoilt = open_store(place)
        s3.use(self._monkeypatch, s3.endpoint())
        return open_store(place), spoilt

    def at_every_request(self, kind: str, tmp_path: Path, prepare: Check, work: Check, check: Check) -> int:
        """`work` with the fault at its first, second, .. request, each time on a new folder; how many there were."""
        for at in itertools.count(1):
            folder = tmp_path / str(at)
            direct, spoilt = self.stores()
            prepare(folder, direct, spoilt)
            self.faults.spoil(at, kind)
            work(folder, direct, spoilt)
            struck = self.faults.struck
            self.faults.always(None)
            check(folder, direct, spoilt)
            if not struck:
                return at - 1
        raise AssertionError


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    """One for all: boto3's clients are costly to make."""
    made = Faults(s3.endpoint(), delay_s=2 * TIMEOUT_S)
    yield made
    made.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> Iterator[World]:
    yield World(monkeypatch, faults)
    faults.always(None)


class Small(Job):
    """One rank with one file: few requests."""

    def contents(self, id_: str) -> dict[str, bytes]:
        return {"model.pt": id_.encode() * 50}

    def save(self, id_: str, store: Any = None, **fields: Any) -> Manifest:
        self.share(id_, 0, store)
        done = commit(store or self.store, self.note(id_, **fields), "nonce-" + id_)
        assert done.manifest is not None
        return done.manifest


def nothing_before(_folder: Path, _direct: Store, _spoilt: Store) -> None:
    """No preparation."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_and_its_commit_get_over_any_fault(world: World, tmp_path: Path, kind: str) -> None:
    def save(folder: Path, _direct: Store, spoilt: Store) -> None:
        assert Small(folder, spoilt).save("1-1-1").nonce == "nonce-1-1-1"

    def check(folder: Path, direct: Store, _spoilt: Store) -> None:
        assert Small(folder, direct).good() == ["1-1-1"]
        assert direct.unfinished("") == []

    assert world.at_every_request(kind, tmp_path, nothing_before, save, check) == 10


@pytest.mark.parametrize("kind", ["503", "cut", "reset", "delay", "flip"])
def test_a_restore_gets_over_any_fault(world: World, tmp_path: Path, kind: str) -> None:
    kept = s3.fresh_uri()
    Small(tmp_path, world.stores(kept)[0]).save("1-1-1")
    world.place = kept

    def restore(folder: Path, _direct: Store, spoilt: Store) -> None:
        newest = stored.newest_good(spoilt, 1, [])
        assert newest is not None
        stored.fetch(spoilt, "checkpoints/1-1-1", str(folder / "brought"), newest.id)

    def check(folder: Path, direct: Store, _spoilt: Store) -> None:
        assert read_tree(folder / "brought") == Small(folder, direct).contents("1-1-1")
        assert direct.size("checkpoints/1-1-1/.trainjob/damaged.json") is None

    assert world.at_every_request(kind, tmp_path, nothing_before, restore, check) >= 8


def test_a_retention_gets_over_a_lost_reply(world: World, tmp_path: Path) -> None:
    """One folder for all: each time a new checkpoint comes and the one before goes."""
    world.place = s3.fresh_uri()
    saved = 0

    def prepare(folder: Path, direct: Store, _spoilt: Store) -> None:
        nonlocal saved
        for _ in range(1 if saved else 2):
            saved += 1
            Small(folder, direct).save(f"1-1-{saved}")

    def retain(_folder: Path, _direct: Store, spoilt: Store) -> None:
        assert Retainer(spoilt, 1).retain(Policy(keep=1), set()).removed == (CheckpointId(1, 1, saved - 1),)

    def check(folder: Path, direct: Store, _spoilt: Store) -> None:
        assert Small(folder, direct).good() == Small(folder, direct).folders() == [f"1-1-{saved}"]

    assert world.at_every_request("drop", tmp_path, prepare, retain, check) >= 12


@pytest.mark.parametrize("kind", ["drop", "cut", "503", "delay"])
def test_a_claim_is_made_once(world: World, tmp_path: Path, kind: str) -> None:
    def claim(_folder: Path, _direct: Store, spoilt: Store) -> None:
        assert settle(spoilt, "uid-1", "auto", []).run == 1

    def check(_folder: Path, direct: Store, _spoilt: Store) -> None:
        assert settle(direct, "uid-1", "auto", []).run == 1
        assert settle(direct, "uid-2", "auto", []).run == 2
        assert runs.numbers(direct) == [1, 2]

    assert world.at_every_request(kind, tmp_path, nothing_before, claim, check) >= 3


@pytest.mark.parametrize("kind", ["drop", "cut"])
def test_a_large_file_gets_over_any_fault_both_ways(world: World, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(s3_transfer.SINGLE + 1))

    def there_and_back(folder: Path, _direct: Store, spoilt: Store) -> None:
        expected = spoilt.upload("f", str(file), nothing)
        assert spoilt.download("f", str(folder / "copy"), nothing, spoilt.algorithm) == expected

    def check(folder: Path, direct: Store, _spoilt: Store) -> None:
        assert (folder / "copy").read_bytes() == file.read_bytes()
        direct.tidy("")
        assert direct.unfinished("") == [] and list(direct.sizes("")) == ["f"]

    stores = world.stores
    world.stores = lambda uri=None, **settings: stores(uri, timeout_s=5.0)  # type: ignore[method-assign]
    assert world.at_every_request(kind, tmp_path, nothing_before, there_and_back, check) >= 9


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("503", errors.UNREADABLE, "the store is overloaded or broken"),
        ("reset", errors.UNREADABLE, "the store does not answer"),
        ("403", errors.READ_ONLY, "these credentials have no right to do that. Needed are s3:GetObject, PutObject"),
        ("expired", errors.READ_ONLY, "the credentials have expired"),
        ("skew", errors.READ_ONLY, "clock and the store's differ by more than 15 minutes"),
    ],
)
def test_a_fault_that_stays_is_one_sentence_and_the_same_save_goes_on_when_it_is_over(world: World, tmp_path: Path, kind: str, error: str, says: str) -> None:
    direct, spoilt = world.stores(retry_s=0.3)
    job = Job(tmp_path, spoilt)
    job.share("1-1-1", 0)
    world.faults.always(kind)
    with pytest.raises(StoreError, match=says) as caught:
        spoilt.put("f", b"data")
    assert caught.value.kind == error
    with pytest.raises(StoreError, match=says):
        job.save("1-1-1")
    world.faults.always(None)
    job.save("1-1-1")
    assert Job(tmp_path, direct).good() == ["1-1-1"]


def test_a_key_that_is_gone_is_damage_and_not_an_outage(world: World, tmp_path: Path) -> None:
    direct, _ = world.stores()
    job = Job(tmp_path, direct)
    for index in (1, 2):
        job.save(f"1-1-{index}")
    direct.delete("checkpoints/1-1-2/model.pt")
    warnings: list[str] = []
    newest = stored.newest_good(direct, 1, warnings)
    assert newest is not None and str(newest.id) == "1-1-1" and "found no such file" in warnings[0]
