"""Older attempts and runs that go on beside newer ones, on purpose, over both stores: the older never wins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.checkpoint import Interposed, Job
from support.s3_held import Held
from trainjob.checkpoint.choice.choose import Candidate
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.errors import CheckpointError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.publishing.retire import Retainer, remove
from trainjob.checkpoint.publishing.shares import commit
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store


def chosen(
    store: Store, uid: str = "uid-1", resume_from: str = "auto", candidates: list[Candidate] | None = None
) -> str | None:
    """What an attempt of that object would resume from."""
    choice = settle(store, uid, resume_from, candidates or []).choice
    return None if choice is None else str(choice.note.id)


def test_of_two_attempts_that_save_at_the_same_index_the_newer_counts_whoever_comes_last(
    any_store: Store, tmp_path: Path
) -> None:
    job = Job(tmp_path, any_store)
    assert settle(any_store, "uid-1", "auto", []).run == 1
    for id_ in ("1-1-3", "1-2-4", "1-1-4", "1-1-99"):  # the zombie of attempt 1 goes on and on
        job.save(id_)
    assert chosen(any_store) == "1-2-4"
    assert job.good() == ["1-1-3", "1-1-4", "1-1-99", "1-2-4"]
    done = Retainer(any_store, 1).retain(Policy(keep=1), set())
    assert done.latest is not None and str(done.latest.id) == "1-2-4" and job.good() == ["1-2-4"]


def test_what_a_zombie_of_the_run_before_still_commits_is_not_what_the_new_run_resumes_from(
    any_store: Store, tmp_path: Path
) -> None:
    job = Job(tmp_path, any_store)
    assert settle(any_store, "uid-1", "auto", []).run == 1
    job.save("1-1-1")
    job.save("1-1-2")
    assert chosen(any_store, "uid-2") == "1-1-2"
    job.save("1-9-99")
    assert chosen(any_store, "uid-2") == "1-1-2", "the claim of run 2 has fixed it"
    note = job.note("1-9-100")
    staged = [Candidate(note, frozenset(f.path for f in note.files))]
    assert chosen(any_store, "uid-2", candidates=staged) == "1-1-2", "nor does what is staged of that run"
    assert Retainer(any_store, 1).retain(Policy(keep=1), set()).removed == (), (
        "its retention takes nothing away from the new run"
    )
    job.save("2-1-1")
    assert chosen(any_store, "uid-2") == "2-1-1"
    assert chosen(any_store, "uid-1") == "1-9-99", "whoever still is run 1 stays in it"


def test_an_older_leaders_commit_between_any_two_steps_of_a_removal_is_never_a_torn_restore(
    any_store: Store, tmp_path: Path
) -> None:
    calls, at = 1, 0
    while at < calls:
        at += 1
        job = Job(tmp_path / str(at), any_store)
        id_ = CheckpointId(1, 1, at)
        job.share(str(id_), 0)
        job.share(str(id_), 1)

        def zombie(job: Job = job, id_: CheckpointId = id_) -> None:
            try:
                commit(job.store, job.note(str(id_)), "zombie")
            except CheckpointError:
                pass
            assert set(job.good()) <= {str(id_)}

        store: Any = Interposed(any_store, at, zombie)
        remove(store, id_)
        calls = max(calls, store.calls)
        assert job.good() == job.folders() == []
    assert calls > 8


def test_retention_of_an_older_attempt_takes_nothing_away_once_a_newer_one_has_begun(
    any_store: Store, tmp_path: Path
) -> None:
    """Its leader does not know that it is over: it commits and keeps one, while the newer attempt reads what it chose."""
    job = Job(tmp_path, any_store)
    zombie = Retainer(any_store, 1, attempt=1)
    assert settle(any_store, "uid-1", "auto", [], attempt=1).run == 1
    job.save("1-1-1")
    zombie.retain(Policy(keep=1), set())
    choice = settle(any_store, "uid-1", "auto", [], attempt=2).choice
    assert choice is not None and str(choice.note.id) == "1-1-1"
    job.save("1-1-2")
    assert zombie.retain(Policy(keep=1), set()).removed == ()
    assert job.good() == ["1-1-1", "1-1-2"]
    job.save("1-2-1")
    Retainer(any_store, 1, attempt=2).retain(Policy(keep=1), set())
    assert job.good() == ["1-2-1"], "that of the newer one does its work"
    marks = [name for name, _ in any_store.names("runs") if "attempt" in name]
    settle(any_store, "uid-1", "auto", [], attempt=3)
    assert marks == ["1.attempt-2.json"], "marks do not pile up"
    assert runs.numbers(any_store) == [1]


def test_a_newer_attempt_that_begins_at_any_step_of_an_older_ones_retention_keeps_what_it_chose(tmp_path: Path) -> None:
    calls, at = 1, 0
    while at < calls:
        at += 1
        job = Job(tmp_path / str(at))
        settle(job.store, "uid-1", "auto", [], attempt=1)
        job.save("1-1-1")
        job.save("1-1-2")
        chose: list[str] = []

        def newer(store: Store = job.store, chose: list[str] = chose) -> None:
            choice = settle(store, "uid-1", "auto", [], attempt=2).choice
            assert choice is not None
            chose.append(str(choice.note.id))

        store: Any = Interposed(job.store, at, newer)
        Retainer(store, 1, attempt=1).retain(Policy(keep=1), set())
        calls = max(calls, store.calls)
        assert "1-1-2" in job.good() and chose in (["1-1-2"], [])
    assert 5 < calls < 100


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held(s3.endpoint())
    yield made
    made.close()


def test_a_manifest_of_an_older_attempt_that_arrives_late_wins_nothing(
    held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its way for so long that the newer attempt has started, saved, and removed what its author had shared."""
    import threading

    place = s3.fresh_uri()
    s3.use(monkeypatch, held.endpoint)
    slow = open_store(place)
    s3.use(monkeypatch, s3.endpoint())
    job = Job(tmp_path, open_store(place))
    assert settle(job.store, "uid-1", "auto", []).run == 1
    job.save("1-1-1")
    for rank in (0, 1):
        job.share("1-1-2", rank)
    held.hold(lambda _at, request: request.startswith("PUT") and "1-1-2" in request and "manifest.json" in request)
    zombie = threading.Thread(target=lambda: commit(slow, job.note("1-1-2"), "zombie"))
    zombie.start()
    assert held.wait()
    assert chosen(job.store) == "1-1-1"
    job.save("1-2-3")
    Retainer(job.store, 1).retain(Policy(keep=1), set())
    assert job.folders() == ["1-2-3"], "the unfinished upload of the older attempt went too"
    held.let_go(through=True)
    zombie.join()
    assert chosen(job.store) == "1-2-3" and job.good() == ["1-2-3"]
    assert stored.newest_good(job.store, 1, []) is not None
    Retainer(job.store, 1).retain(Policy(keep=1), set())
    assert job.folders() == ["1-2-3"], "what came late is collected"
    assert runs.numbers(job.store) == [1]
