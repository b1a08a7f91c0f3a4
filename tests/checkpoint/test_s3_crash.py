"""Processes killed while any one of their requests to S3 is under way, the request lost or taking effect after their
death; nothing torn, nothing lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.checkpoint import Job
from support.s3_held import Held, killed_at
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.publishing.shares import commit
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records.manifest import Manifest
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store

pytestmark = pytest.mark.slow
Stores = Callable[[], tuple[Store, Store]]


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    made = Held(s3.endpoint())
    yield made
    made.close()


@pytest.fixture
def stores(held: Held, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """(direct, through the proxy) of an unused folder."""

    def fresh() -> tuple[Store, Store]:
        place = s3.fresh_uri()
        s3.use(monkeypatch, held.endpoint)
        through = open_store(place)
        s3.use(monkeypatch, s3.endpoint())
        return open_store(place), through

    return fresh


class Small(Job):
    """One rank with one file: few requests."""

    def contents(self, id_: str) -> dict[str, bytes]:
        return {"model.pt": id_.encode() * 50}

    def save(self, id_: str, store: Any = None, **fields: Any) -> Manifest:
        self.share(id_, 0, store)
        done = commit(store or self.store, self.note(id_, **fields), "nonce-" + id_)
        assert done.manifest is not None
        return done.manifest


@pytest.mark.parametrize("through", [True, False], ids=["then it takes effect", "and it is lost"])
def test_a_save_that_is_killed_at_any_request_leaves_the_old_or_the_new_one_and_can_be_finished(
    held: Held, stores: Stores, tmp_path: Path, through: bool
) -> None:
    for at in itertools.count(1):
        direct, spoilt = stores()
        job = Small(tmp_path / str(at), direct)
        job.save("1-1-1")
        job.stage("1-1-2")
        killed = killed_at(held, at, through, lambda job=job, spoilt=spoilt: job.save("1-1-2", spoilt))
        assert job.good() in (["1-1-1"], ["1-1-1", "1-1-2"]), held.request
        job.save("1-1-2")
        assert job.good() == ["1-1-1", "1-1-2"] and direct.unfinished("") == [], held.request
        if not killed:
            assert at > 5
            break


@pytest.mark.parametrize(("through", "stride"), [(True, 2), (False, 5)], ids=["then it takes effect", "and it is lost"])
def test_a_retention_that_is_killed_at_any_request_keeps_what_it_must_and_can_be_finished(
    held: Held, stores: Stores, tmp_path: Path, through: bool, stride: int
) -> None:
    """One folder for all: each time a newer checkpoint comes, and the one before and what a dead attempt left are to
    go.
    """
    direct, spoilt = stores()
    job = Small(tmp_path, direct)
    job.save("1-1-1")
    newest = "1-1-1"
    for at in itertools.count(1, stride):
        before, newest, orphan = newest, f"1-{at + 1}-1", f"1-{at}-9"
        job.save(newest)
        job.share(orphan, 0)
        killed = killed_at(held, at, through, lambda: Retainer(spoilt, 1).retain(Policy(keep=1), set()))
        assert set(job.good()) - {before} == {newest}, held.request
        Retainer(direct, 1).retain(Policy(keep=1), set())
        # An upload of a dead attempt is older by its identity, whatever any clock says.
        assert job.good() == job.folders() == [newest], held.request
        if not killed:
            assert at > 5
            break


def test_a_claim_whose_process_is_killed_is_made_once(held: Held, stores: Stores) -> None:
    for at in itertools.count(1):
        direct, spoilt = stores()
        killed = killed_at(held, at, True, lambda spoilt=spoilt: settle(spoilt, "uid-1", "auto", []))
        assert [settle(direct, uid, "auto", []).run for uid in ("uid-1", "uid-2")] == [1, 2]
        assert runs.numbers(direct) == [1, 2]
        if not killed:
            break
