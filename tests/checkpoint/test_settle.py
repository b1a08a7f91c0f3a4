"""What an attempt starts from: runs, resumeFrom, staged and stored candidates."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.checkpoint import Job, note_of, write_tree
from trainjob.checkpoint import errors
from trainjob.checkpoint.choice.choose import STAGED, STORED, Candidate, Choice, choose, choose_staged
from trainjob.checkpoint.choice.settle import Settled, settle
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.reading import runs, stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores.transfer import nothing


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def start(job: Job, uid: str, resume_from: str = "auto", *candidates: Candidate) -> Settled:
    return settle(job.store, uid, resume_from, candidates)


def resumed(settled: Settled) -> tuple[int, str | None]:
    return settled.run, None if settled.choice is None else str(settled.choice.note.id)


def damage(job: Job, id_: str) -> None:
    (job.path(id_) / "model.pt").write_bytes(b"")


def test_a_run_begins_with_nothing_and_goes_on_from_its_own_newest(job: Job) -> None:
    assert resumed(start(job, "a")) == (1, None)
    first, second = (settle(job.store, "a", "auto", (), attempt) for attempt in (1, 2))
    assert first.why == "no earlier run of this name: the job starts from the beginning"
    assert second.why == "no checkpoint yet: attempt 2 starts from the beginning", "attempt 1 was of this run"
    job.save("1-1-2")
    job.save("1-1-10")
    assert resumed(start(job, "a")) == (1, "1-1-10")
    job.save("1-2-1")
    settled = start(job, "a")
    assert resumed(settled) == (1, "1-2-1")
    assert settled.choice is not None and settled.choice.source == STORED and settled.uri == str(job.path("1-2-1"))
    assert "the job resumes from checkpoint 1-2-1 (step 10), stored" in settled.why


def test_auto_goes_on_from_a_run_that_did_not_complete(job: Job) -> None:
    start(job, "a")
    job.save("1-1-3")
    settled = start(job, "b")
    assert resumed(settled) == (2, "1-1-3")
    assert settled.why == "run 1 did not complete: the job resumes from its checkpoint 1-1-3 (step 10)"
    assert resumed(start(job, "c")) == (3, "1-1-3"), "run 2 left none of its own: what it resumed from counts"


def test_auto_never_goes_on_from_a_run_that_completed(job: Job) -> None:
    start(job, "a")
    job.save("1-1-3")
    runs.write_end(job.store, 1, {"position": 3})
    runs.write_end(job.store, 1, {"position": 99})
    assert runs.read_end(job.store, 1) == {"position": 3}
    assert start(job, "a").completed and not start(job, "b").completed
    settled = start(job, "b")
    assert resumed(settled) == (2, None) and settled.why == "run 1 completed: the job starts from the beginning"
    assert resumed(start(job, "c")) == (3, None)


def test_none_starts_over_and_its_own_attempts_go_on(job: Job) -> None:
    start(job, "a")
    job.save("1-1-3")
    assert resumed(start(job, "b", "none")) == (2, None)
    job.save("2-1-1")
    assert resumed(start(job, "b", "none")) == (2, "2-1-1")


def test_until_a_run_has_its_own_checkpoint_a_zombies_newer_one_is_not_taken(job: Job) -> None:
    start(job, "a")
    job.save("1-1-3")
    start(job, "b")
    job.save("1-1-4")
    job.save("1-7-1")
    assert resumed(start(job, "b")) == (2, "1-1-3")
    job.save("2-1-1")
    job.save("1-9-9")
    assert resumed(start(job, "b")) == (2, "2-1-1")


def test_damage_goes_back_along_the_lineage_across_runs(job: Job) -> None:
    start(job, "a")
    for id_ in ("1-1-1", "1-1-2", "1-1-3"):
        job.save(id_)
    start(job, "b")
    job.save("1-1-4")
    job.save("2-1-1")
    damage(job, "2-1-1")
    damage(job, "1-1-3")
    settled = start(job, "b")
    assert resumed(settled) == (2, "1-1-2")
    assert settled.why == "the job resumes from checkpoint 1-1-2 (step 10), the newest good one before 1-1-3"
    assert [w.split(":")[0] for w in settled.warnings] == [
        f"checkpoint {i} is skipped for the one before" for i in ("2-1-1", "1-1-3")
    ]
    damage(job, "1-1-2")
    damage(job, "1-1-1")
    assert resumed(start(job, "b")) == (2, None)


def test_a_path_resumes_from_a_checkpoint_of_another_job(job: Job, tmp_path: Path) -> None:
    other = Job(tmp_path / "other")
    other.save("3-1-7")
    path = str(other.path("3-1-7"))
    settled = start(job, "a", path)
    assert resumed(settled) == (1, "3-1-7") and settled.uri == path
    assert settled.why == f"resumeFrom names {path} (step 10)"
    claimed = runs.read_claim(job.store, 1)
    assert claimed is not None and claimed.uri == path
    assert start(job, "b").uri == path, "a run that left nothing hands on what it resumed from"
    job.save("2-1-1")
    assert resumed(start(job, "b")) == (2, "2-1-1")
    copied = write_tree(
        tmp_path / "copied",
        {
            p.relative_to(other.path("3-1-7")).as_posix(): p.read_bytes()
            for p in other.path("3-1-7").rglob("*")
            if p.is_file()
        },
    )
    assert start(job, "c", str(copied) + "/").uri == str(copied)


def test_a_named_checkpoint_that_turns_out_damaged_is_not_tried_for_ever(job: Job, tmp_path: Path) -> None:
    other = Job(tmp_path / "other")
    other.save("3-1-7")
    file = other.path("3-1-7") / "model.pt"
    file.write_bytes(b"!" * len(file.read_bytes()))
    settled = start(job, "a", str(other.path("3-1-7")))
    with pytest.raises(DamagedError):
        perform(
            {"op": "verify", "storage": job.store.uri(), "uri": settled.uri, "paths": ["model.pt"], "into": ""}, nothing
        )
    (other.path("3-1-7") / ".trainjob/damaged.json").unlink()  # as on storage that may not be written
    with pytest.raises(
        DamagedError,
        match=r"resumeFrom: checkpoint .*3-1-7 turned out damaged when it was restored. Name another one, or none",
    ):
        start(job, "a", str(other.path("3-1-7")))


def test_of_a_damaged_checkpoint_that_is_named_the_one_before_is_told(job: Job, tmp_path: Path) -> None:
    other = Job(tmp_path / "other")
    for id_ in ("1-1-1", "1-1-2", "2-1-1", "2-1-2"):
        other.save(id_)
    for id_ in ("2-1-1", "2-1-2"):
        damage(other, id_)
    with pytest.raises(DamagedError, match=f"Name the one before it, {other.path('1-1-2')}, or none.$"):
        start(job, "a", str(other.path("2-1-2")))
    damage(other, "1-1-1")
    with pytest.raises(DamagedError, match=r"Name another one, or none\.$"):
        start(job, "a", str(other.path("1-1-1")))


def test_a_path_that_is_no_checkpoint_is_refused_in_a_sentence(job: Job, tmp_path: Path) -> None:
    def refusal(path: str) -> str:
        with pytest.raises(StoreError) as caught:
            start(job, "a", path)
        assert caught.value.kind in (errors.INVALID, errors.DAMAGED)
        assert runs.numbers(job.store) == []
        return str(caught.value)

    plain = str(write_tree(tmp_path / "plain", {"model.pt": b"x"}))
    assert (
        f"resumeFrom: {plain} has no .trainjob/manifest.json, so it is no checkpoint that trainjob committed"
        in refusal(plain)
    )
    assert "load them in the script when get_checkpoint() returns None" in refusal(plain)
    assert "there is no folder /nowhere, or nothing in it" in refusal("/nowhere")
    assert "is not an absolute path" in refusal("checkpoints/1-1-1")
    other = Job(tmp_path / "other")
    settle(other.store, "x", "auto", [])
    assert "is the folder of a job, not of a checkpoint; it holds no good checkpoint" in refusal(other.store.uri())
    other.save("1-1-1")
    assert f"its newest checkpoint is {other.path('1-1-1')}: give that path" in refusal(other.store.uri())
    damage(other, "1-1-1")
    assert "model.pt is damaged: expected 250 bytes, found 0 bytes" in refusal(str(other.path("1-1-1")))


def test_a_second_job_of_one_name_is_warned_about(job: Job) -> None:
    start(job, "a")
    start(job, "b")
    settled = start(job, "a")
    assert settled.run == 1
    assert "run 2 has begun" in settled.warnings[0] and "two jobs of this name use one storage" in settled.warnings[0]


def test_a_damaged_claim_is_named(job: Job) -> None:
    start(job, "a")
    claim = Path(job.store.uri("runs/1.json"))
    claim.write_text(claim.read_text().replace('"a"', '"b"'))
    with pytest.raises(
        StoreError, match=r"runs/1.json is damaged: expected checksum .* Move the file away if run 1 is not needed"
    ):
        start(job, "a")


def test_staged_candidates_count_if_every_file_is_held_or_stored(job: Job) -> None:
    start(job, "a")
    job.save("1-1-1")
    note = job.note("1-1-2")
    zero, one = (frozenset(p for p, _ in note.share_of(r)["files"]) for r in (0, 1))
    assert resumed(start(job, "a", "auto", Candidate(note, zero))) == (1, "1-1-1")
    whole = start(job, "a", "auto", Candidate(note, zero), Candidate(note, one))
    assert resumed(whole) == (1, "1-1-2") and whole.choice == Choice(note, STAGED)
    job.share("1-1-2", 1)
    mixed = start(job, "a", "auto", Candidate(note, zero))
    assert mixed.choice == Choice(note, STAGED, ("deep/er/optim ü.pt",)) and mixed.uri == str(job.path("1-1-2"))
    optimizer = job.path("1-1-2") / "deep/er/optim ü.pt"
    whole_bytes = optimizer.read_bytes()
    optimizer.write_bytes(b"!" * len(whole_bytes))
    torn = start(job, "a", "auto", Candidate(note, zero))
    assert resumed(torn) == (1, "1-1-1") and "optim ü.pt is damaged: expected 109 bytes with crc32" in torn.warnings[0]
    optimizer.write_bytes(whole_bytes)
    assert resumed(start(job, "a", "auto", Candidate(note, zero))) == (1, "1-1-2")
    stored.mark_damaged(job.store, "checkpoints/1-1-2", "test")
    assert resumed(start(job, "a", "auto", Candidate(note, zero))) == (1, "1-1-1")
    assert resumed(start(job, "a", "auto", Candidate(note, zero | one))) == (1, "1-1-2"), (
        "the staged copy is another one"
    )


def test_candidates_of_other_runs_do_not_count(job: Job) -> None:
    start(job, "a")
    start(job, "b")
    assert resumed(
        start(
            job, "b", "auto", Candidate(note_of("1-5-5", {}), frozenset()), Candidate(note_of("3-1-1", {}), frozenset())
        )
    ) == (2, None)


HELD = st.sets(st.sampled_from(["a", "b"])).map(frozenset)
CANDIDATES = st.lists(st.tuples(st.tuples(st.integers(1, 2), st.integers(1, 3)), HELD), max_size=6)


@given(
    CANDIDATES,
    st.dictionaries(st.tuples(st.integers(1, 2), st.integers(1, 3)), HELD),
    st.none() | st.tuples(st.integers(1, 2), st.integers(1, 3)),
)
def test_the_choice_is_complete_and_nothing_complete_is_newer(
    given_: list[tuple[tuple[int, int], frozenset[str]]],
    on_storage: dict[tuple[int, int], frozenset[str]],
    committed: tuple[int, int] | None,
) -> None:
    def note(key: tuple[int, int]) -> object:
        return note_of(f"1-{key[0]}-{key[1]}", {"a": (1, 0), "b": (1, 1)})

    choice = choose(
        [Candidate(note(key), held) for key, held in given_],  # type: ignore[arg-type]
        {CheckpointId(1, *key): paths for key, paths in on_storage.items()},
        None if committed is None else note(committed),  # type: ignore[arg-type]
    )
    complete = [
        key
        for key, _ in given_
        if frozenset().union(on_storage.get(key, frozenset()), *(held for k, held in given_ if k == key)) == {"a", "b"}
    ]
    best = max([*complete, *([committed] if committed else [])], default=None)
    assert (choice and (choice.note.id.attempt, choice.note.id[2])) == best


def test_without_storage_only_what_is_held_completely_counts() -> None:
    note = note_of("1-1-2", {"a": (1, 0)})
    old = note_of("1-1-1", {"a": (1, 0)})
    assert choose_staged([]) is None
    assert choose_staged([Candidate(note, frozenset()), Candidate(old, frozenset("a"))]) == Choice(old, STAGED)
    assert layout.parse_run("1.end.json") is None and layout.parse_run("12.json") == 12


def test_a_committed_one_that_members_hold_in_part_is_not_read_at_the_join(job: Job) -> None:
    start(job, "a")
    job.save("1-1-1")
    lacking = job.path("1-1-1") / "deep/er/optim ü.pt"
    lacking.write_bytes(b"!" * lacking.stat().st_size)
    settled = start(job, "a", "auto", Candidate(job.note("1-1-1"), frozenset({"model.pt", "empty"})))
    assert settled.choice == Choice(job.note("1-1-1"), STORED), (
        "what holds less than all is looked at file by file when it is read"
    )
    assert settled.warnings == ()


def test_a_look_for_the_end_record_claims_and_writes_nothing(job: Job) -> None:
    def look(uid: str) -> dict[str, object]:
        return perform({"op": "ended", "storage": job.store.uri(), "job_uid": uid}, nothing)

    assert look("a") == {"run": None, "completed": False, "shown": None} and runs.numbers(job.store) == []
    start(job, "a")
    assert look("a") == {"run": 1, "completed": False, "shown": None}
    runs.write_end(job.store, 1, {"position": 3})
    assert look("a") == {"run": 1, "completed": True, "shown": None}, "that of an older version"
    start(job, "b")
    assert look("b") == {"run": 2, "completed": False, "shown": None}, "that of the run before is not its own"
    runs.write_end(job.store, 2, {"shown": {"progress": {"position": 3}}})
    assert look("b") == {"run": 2, "completed": True, "shown": {"progress": {"position": 3}}}
    assert look("a") == {"run": 1, "completed": True, "shown": None} and runs.numbers(job.store) == [1, 2]
