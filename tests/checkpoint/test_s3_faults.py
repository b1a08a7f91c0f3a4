"""Every fault at every request of a save with its commit, of a restore, a retention and a claim: nothing torn,
nothing lost, always an end.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.checkpoint import Job, fetched, read_tree
from support.s3_faults import BEFORE, KINDS, PASSING, Faults
from trainjob.checkpoint import errors
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import CheckpointError, StoreError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.publishing.shares import commit
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import FileEntry, Manifest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.s3 import errands, parts, small_files
from trainjob.checkpoint.stores.s3 import requests as s3_requests
from trainjob.checkpoint.stores.s3 import store as s3_store
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing

SLOW = ("delay", "throttle")
FAULTS = ("before", *(kind for kind in KINDS if kind not in BEFORE))
"""What is tried at every request; "before" are all that come before anything happened, each at the next try."""
SHARP = ("before", "drop", "cut", "delay", "403", "412")
"""Enough where no contents travel: the others end in the same lines."""
SHORT_S, LONG_S = 0.15, 10.0
"""How long a stream may stand still where the fault is that it does, and elsewhere."""
SMALLEST_PART = 5 << 20
"""S3 takes no smaller one, but the last."""


class Place:
    """One unused folder of the server: `spoilt` goes through the faults, `behind` looks at the server's own files."""

    def __init__(self, uri: str, spoilt: Store) -> None:
        self.uri, self.spoilt = uri, spoilt
        self.behind = PathStore(str(s3.behind(uri)))


class World:
    """Places, and the faults on the way to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: Faults, folder: Path) -> None:
        self._monkeypatch, self._folder, self.faults = monkeypatch, folder, faults

    def place(self, kind: str = "", uri: str | None = None, retry_s: float = 20.0) -> Place:
        """Reached with the patience that suits the fault."""
        place = uri or s3.fresh_uri()
        s3.use(self._monkeypatch, self.faults.endpoint, timeout_s=SHORT_S if kind in SLOW else LONG_S, retry_s=retry_s)
        return Place(place, open_store(place))

    def at_every_request(
        self,
        kind: str,
        work: Callable[[Path, Place], object],
        check: Callable[[Path, Place, str | None], None],
        uri: str = "",
    ) -> int:
        """`work` with the fault at its first, second, .. request, each time on a new folder (or on that one); how many
        there were.

        What `check` is told: the sentence with which the work ended, None if it was done.
        """
        for at in itertools.count(1):
            folder = self._folder / str(at)
            place = self.place(kind, uri or None)
            self.faults.spoil(at, *(BEFORE if kind == "before" else (kind,)))
            said = attempt(work, folder, place)
            struck = bool(self.faults.struck)
            self.faults.always(None)
            assert said is None or (struck and kind not in ("before", *PASSING)), f"{kind} at request {at}: {said}"
            check(folder, place, said)
            if not struck:
                return at - 1
        raise AssertionError


def attempt(work: Callable[[Path, Place], object], folder: Path, place: Place) -> str | None:
    """What it said, if it failed."""
    try:
        work(folder, place)
    except CheckpointError as error:
        assert "s3://" in str(error) or "checkpoint" in str(error), f"a sentence names what it is about: {error}"
        return str(error)
    return None


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    """One for all: boto3's clients are costly to make."""
    made = Faults(s3.endpoint(), delay_s=2 * SHORT_S, forget=s3.forget)
    yield made
    made.close()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, faults: Faults, tmp_path: Path) -> Iterator[World]:
    monkeypatch.setattr(s3_requests, "PAUSE_S", 0.002)
    yield World(monkeypatch, faults, tmp_path)
    faults.always(None)


class Small(Job):
    """One rank with one file: few requests."""

    def contents(self, id_: str) -> dict[str, bytes]:
        return {"model.pt": id_.encode() * 50}

    def save(self, id_: str, store: Any = None, **fields: Any) -> Manifest:
        self.share(id_, 0, store)
        done = commit(store or self.store, self.note(id_, **fields), "nonce-" + id_)
        if done.manifest is None:
            raise StoreError(errors.LOST, f"checkpoint {id_}: shares are missing of {done.missing}")
        return done.manifest


@pytest.mark.parametrize("kind", FAULTS)
def test_a_save_and_its_commit(world: World, kind: str) -> None:
    """A single fault is got over, or told; then the same save, begun again, is done. What was acknowledged is there
    and whole.
    """

    def save(folder: Path, place: Place) -> None:
        assert Small(folder, place.spoilt).save("1-1-1").nonce == "nonce-1-1-1"

    def check(folder: Path, place: Place, said: str | None) -> None:
        job = Small(folder, place.behind)
        if kind == "forget":
            assert job.good() in (["1-1-1"], []), "what the store itself loses is found missing, never taken for whole"
            return
        assert job.good() in ([], ["1-1-1"]), "all of it or nothing"
        if said:
            save(folder, place)
        assert job.good() == ["1-1-1"] and s3.unfinished(place.uri) == 0

    tried = world.at_every_request(kind, save, check)
    assert tried == 10 or (kind in SLOW and tried > 10), (
        "a busy machine is slow by itself: what takes long is asked again"
    )


@pytest.mark.parametrize("kind", FAULTS)
def test_a_restore(world: World, kind: str) -> None:
    """The right bytes or a sentence; and no fault on the way condemns a checkpoint that is whole."""
    kept = s3.fresh_uri()

    def save(folder: Path) -> None:
        for index in (1, 2):
            Small(folder, world.place(uri=kept).spoilt).save(f"1-1-{index}")

    def restore(folder: Path, place: Place) -> None:
        newest = stored.newest_good(place.spoilt, 1, [])
        assert newest is not None
        if kind != "forget":
            assert str(newest.id) == "1-1-2"
        stored.fetch(place.spoilt, layout.folder(newest.id), newest.entries, str(folder / "brought"))
        assert read_tree(folder / "brought") == Small(folder, place.behind).contents(str(newest.id))

    def check(folder: Path, place: Place, said: str | None) -> None:
        damaged = place.behind.size("checkpoints/1-1-2/.trainjob/damaged.json") is not None
        assert damaged <= (kind == "forget"), "marked for good only if it is"
        if kind == "forget":
            shutil.rmtree(place.behind.uri("checkpoints"))
            save(folder / "again")
        elif said:
            restore(folder, place)

    save(s3.behind(kept) / ".." / "staged")
    assert world.at_every_request(kind, restore, check, kept) >= 6


@pytest.mark.parametrize("kind", [*SHARP, "forget"])
def test_a_retention(world: World, kind: str, tmp_path: Path) -> None:
    """The latest is never touched; the one before goes, by the next retention at the latest."""
    kept = world.place()
    for index in (1, 2):
        Small(tmp_path / "staged", kept.spoilt).save(f"1-1-{index}")

    def retain(_folder: Path, place: Place) -> None:
        if not os.path.exists(place.behind.root):
            shutil.copytree(
                kept.behind.root, place.behind.root
            )  # what the server notes of each object stands in the files' attributes
        Retainer(place.spoilt, 1).retain(Policy(keep=1), set())

    def check(folder: Path, place: Place, said: str | None) -> None:
        job = Small(folder, place.behind)
        if kind == "forget":
            assert job.good() in (["1-1-2"], ["1-1-1", "1-1-2"], ["1-1-1"]), "what is there is whole"
            return
        assert "1-1-2" in job.good()
        if said:
            retain(folder, place)
        assert job.good() == ["1-1-2"] and not place.behind.sizes("checkpoints/1-1-1")

    assert world.at_every_request(kind, retain, check) >= 18


@pytest.mark.parametrize("kind", SHARP)
def test_a_claim_is_made_once(world: World, kind: str) -> None:
    def claim(_folder: Path, place: Place) -> None:
        assert settle(place.spoilt, "uid-1", "auto", []).run == 1

    def check(_folder: Path, place: Place, _said: str | None) -> None:
        assert settle(place.behind, "uid-1", "auto", []).run == 1
        assert settle(place.behind, "uid-2", "auto", []).run == 2
        assert runs.numbers(place.behind) == [1, 2]

    assert world.at_every_request(kind, claim, check) >= 3


@pytest.mark.parametrize("kind", [*SHARP, "flip down", "forget"])
def test_a_file_of_several_parts_both_ways(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(parts, "SINGLE", SMALLEST_PART)
    monkeypatch.setattr(parts, "PART", SMALLEST_PART)
    monkeypatch.setattr(parts, "THREADS", 1)  # so that each position is each time the same request
    file = tmp_path / "file"
    file.write_bytes(os.urandom(SMALLEST_PART + 1000))

    def there_and_back(folder: Path, place: Place) -> None:
        expected = place.spoilt.upload("f", str(file), nothing)
        stored.compare(place.spoilt, "", [FileEntry("f", *expected, 0)], str(folder))
        assert (folder / "f").read_bytes() == file.read_bytes()

    def check(folder: Path, place: Place, said: str | None) -> None:
        if said and kind != "forget":
            there_and_back(folder, place)
        assert kind == "forget" or (s3.behind(place.uri) / "f").read_bytes() == file.read_bytes()
        place.spoilt.tidy("")
        assert s3.unfinished(place.uri) == 0

    assert world.at_every_request(kind, there_and_back, check) >= 7


class Several(Small):
    """Small files enough to go side by side, and one that is too large for it."""

    def contents(self, id_: str) -> dict[str, bytes]:
        return {**{f"part-{n}": f"{id_} {n}".encode() * n for n in range(3)}, "large": id_.encode() * 1000}


@pytest.mark.parametrize("kind", [*SHARP, "flip down", "forget"])
def test_small_files_side_by_side_both_ways(world: World, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What the quick way leaves undone, the patient one does or tells."""
    monkeypatch.setattr(small_files, "FEW", 2)
    monkeypatch.setattr(small_files, "LIMIT", 1000)
    monkeypatch.setattr(errands, "AT_ONCE", 1)  # so that each position is each time the same request
    monkeypatch.setattr(s3_store.S3Store, "at_once", 1)

    def there_and_back(folder: Path, place: Place) -> None:
        job = Several(folder, place.spoilt)
        stored.fetch(place.spoilt, "checkpoints/1-1-1", job.save("1-1-1").entries, str(folder / "brought"))
        assert read_tree(folder / "brought") == job.contents("1-1-1")

    def check(folder: Path, place: Place, said: str | None) -> None:
        if kind == "forget":
            return
        assert Several(folder, place.behind).good() in ([], ["1-1-1"])
        if said:
            there_and_back(folder, place)
        assert Several(folder, place.behind).good() == ["1-1-1"]

    assert world.at_every_request(kind, there_and_back, check) >= 4 + 1 + 6 + 4


@pytest.mark.parametrize("seed", range(3))
def test_faults_at_random(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A quarter of all requests is spoilt, while two ranks save, one file in parts; rounds of save, retention and
    restore, each until it is done.
    """
    monkeypatch.setattr(parts, "SINGLE", SMALLEST_PART)
    monkeypatch.setattr(parts, "PART", SMALLEST_PART)
    large = random.Random(seed).randbytes(SMALLEST_PART + 1)

    class Large(Job):
        def contents(self, id_: str) -> dict[str, bytes]:
            return {**super().contents(id_), "large.bin": id_.encode() + large}

    place = world.place()
    spoilt, behind = Large(tmp_path, place.spoilt), Large(tmp_path, place.behind)
    acknowledged: list[str] = []
    world.faults.at_random(seed, 0.25, tuple(kind for kind in KINDS if kind not in (*SLOW, "forget")))
    for index in range(1, 3 + seed):
        until_done(lambda index=index: spoilt.save(f"1-1-{index}"))
        acknowledged.append(f"1-1-{index}")
        assert behind.good() == acknowledged
        until_done(lambda: Retainer(place.spoilt, 1).retain(Policy(keep=2), set()))
        acknowledged = acknowledged[-2:]
        assert behind.good() == acknowledged
        brought = tmp_path / f"brought-{index}"
        until_done(
            lambda index=index, brought=brought: fetched(
                place.spoilt, f"checkpoints/1-1-{index}", str(brought), CheckpointId(1, 1, index)
            )
        )
        assert read_tree(brought) == behind.contents(f"1-1-{index}")
    assert len(world.faults.struck) > 10


def until_done(work: Callable[[], object]) -> None:
    """As the agent does; told refusals are tried again."""
    for _ in range(60):
        try:
            work()
            return
        except CheckpointError:
            continue
    raise AssertionError("no end")


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("503", errors.UNREADABLE, "the store is overloaded or broken"),
        ("reset", errors.UNREADABLE, "the store does not answer"),
        ("drop", errors.UNREADABLE, "the store does not answer"),
        ("409", errors.UNREADABLE, "somebody else writes the same name"),
        ("flip up", errors.CONFLICT, "something between here and the store changes what is sent"),
        ("403", errors.READ_ONLY, "these credentials have no right to do that. Needed are s3:GetObject, PutObject"),
        ("key", errors.READ_ONLY, "the credentials are not valid"),
        ("token", errors.READ_ONLY, "the credentials are not valid"),
        ("expired", errors.READ_ONLY, "the credentials have expired"),
        ("skew", errors.READ_ONLY, "clock and the store's differ by more than 15 minutes"),
        ("moved", errors.READ_ONLY, "the bucket is in another region"),
    ],
)
def test_a_fault_that_stays_is_one_sentence_and_the_same_save_goes_on_when_it_is_over(
    world: World, tmp_path: Path, kind: str, error: str, says: str
) -> None:
    place = world.place(retry_s=0.3)
    job = Job(tmp_path, place.spoilt)
    job.share("1-1-1", 0)
    world.faults.always(kind)
    with pytest.raises(StoreError, match=says) as caught:
        place.spoilt.put("f", b"data")
    assert caught.value.kind == error
    with pytest.raises(StoreError, match=says):
        job.share("1-1-1", 1) if kind != "flip up" else place.spoilt.upload(
            "g", str(job.stage("1-1-1") / "model.pt"), nothing
        )
    world.faults.always(None)
    job.save("1-1-1")
    assert Job(tmp_path, place.behind).good() == ["1-1-1"]


@pytest.mark.parametrize(
    ("kind", "says"), [("expired", "have expired"), ("403", "no right"), ("skew", "clock"), ("key", "not valid")]
)
def test_refusals_in_the_middle_of_a_large_file_end_it_with_a_sentence_and_leave_nothing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, says: str
) -> None:
    """From the second part on: the upload ends, its parts are taken away once that is possible, and the next try
    stores the file.
    """
    monkeypatch.setattr(parts, "SINGLE", SMALLEST_PART)
    monkeypatch.setattr(parts, "PART", SMALLEST_PART)
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3 * SMALLEST_PART))
    place = world.place()
    world.faults.follow(
        lambda _at, request: kind if "partNumber" in request and "partNumber=1" not in request else None
    )
    with pytest.raises(StoreError, match=says):
        place.spoilt.upload("f", str(file), nothing)
    assert s3.unfinished(place.uri) == 0 and not (s3.behind(place.uri) / "f").exists()
    world.faults.always(None)
    assert place.spoilt.upload("f", str(file), nothing).size == 3 * SMALLEST_PART


def test_a_key_that_is_gone_is_damage_and_not_an_outage(world: World, tmp_path: Path) -> None:
    place = world.place()
    job = Job(tmp_path, place.spoilt)
    for index in (1, 2):
        job.save(f"1-1-{index}")
    place.behind.delete("checkpoints/1-1-2/model.pt")
    warnings: list[str] = []
    newest = stored.newest_good(place.spoilt, 1, warnings)
    assert newest is not None and str(newest.id) == "1-1-1" and "found no such file" in warnings[0]
