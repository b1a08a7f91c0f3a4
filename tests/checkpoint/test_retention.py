"""Which checkpoints are kept (a table), and what is removed from storage."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.checkpoint import Interposed, Job
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.publishing.retention import Plan, Policy, Scored, best, plan
from trainjob.checkpoint.publishing.retire import Retainer
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.storage_child.operations import _Retention
from trainjob.checkpoint.stores.store import Store
from trainjob.checkpoint.stores.transfer import nothing


def planned(scores: list[Any], policy: Policy, protect: tuple[int, ...] = ()) -> Plan:
    """Checkpoints 1, 2, ... with these scores of `acc`; ... stands for a missing one."""
    committed = [
        Scored(CheckpointId(1, 1, n), {} if score is ... else {"acc": score, "loss": 1})
        for n, score in enumerate(scores, 1)
    ]
    return plan(committed[::-1], policy, {CheckpointId(1, 1, n) for n in protect})


def indexes(ids: tuple[CheckpointId, ...]) -> list[int]:
    return [id_[2] for id_ in ids]


@pytest.mark.parametrize(
    ("scores", "policy", "protect", "removed", "best"),
    [
        ([1, 2, 3], Policy(None), (), [], None),
        ([1, 2, 3], Policy(1), (), [1, 2], None),
        ([1, 2, 3], Policy(5), (), [], None),
        ([1, 2, 3, 4], Policy(2), (1,), [2], None),
        ([9, 1, 2], Policy(1, "acc"), (), [2], 1),
        ([9, 1, 2], Policy(1, "acc", "min"), (), [1], 2),
        ([1, 9, 2], Policy(2, "acc"), (), [1], 2),
        ([5, 5, 5, 1], Policy(2, "acc"), (), [1], 3),
        ([nan, 3, ..., 2, nan], Policy(2, "acc"), (), [1, 3], 2),
        ([nan, ..., 1], Policy(2, "acc"), (), [2], 3),
        ([nan, ..., 1], Policy(2, "acc", "min"), (), [2], 3),
        ([..., nan, ...], Policy(1, "acc"), (), [1], None),
        ([-inf, inf, nan, 0], Policy(2, "acc"), (), [1, 3], 2),
        (["x", 1, True, None], Policy(2, "acc"), (), [1], 3),
        ([10**400, 1, 2], Policy(1, "acc"), (), [2], 1),
        ([], Policy(1, "acc"), (), [], None),
    ],
)
def test_what_is_removed(
    scores: list[Any], policy: Policy, protect: tuple[int, ...], removed: list[int], best: int | None
) -> None:
    result = planned(scores, policy, protect)
    assert indexes(result.remove) == removed
    assert (result.best and result.best[2]) == best
    assert (result.latest and result.latest[2]) == (len(scores) or None)


@pytest.mark.parametrize(
    ("scores", "policy", "listed"),
    [
        ([3, 1, 2], Policy(None, "acc"), [2, 3, 1]),
        ([3, 1, 2], Policy(None, "acc", "min"), [1, 3, 2]),
        ([3, 5, 4, 1, 2], Policy(2, "acc"), [3, 2]),
        ([3, 1, 2, 5], Policy(1, "acc", "min"), [2]),
        ([..., 1, nan, 2], Policy(None, "acc"), [1, 3, 2, 4]),
        ([7, 7], Policy(None, "acc"), [1, 2]),
        ([9, 1, 5], Policy(2), [2, 3]),
        ([], Policy(2, "acc"), []),
    ],
)
def test_the_best_are_listed_worst_first(scores: list[Any], policy: Policy, listed: list[int]) -> None:
    committed = [Scored(CheckpointId(1, 1, n), {} if s is ... else {"acc": s}) for n, s in enumerate(scores, 1)]
    assert indexes(best(committed[::-1], policy)) == listed


def test_a_missing_score_is_one_warning() -> None:
    assert planned([1, 2], Policy(1, "acc")).warnings == ()
    (warning,) = planned([..., 1, "x"], Policy(1, "acc")).warnings
    assert (
        "scoreAttribute 'acc': 2 of 3 checkpoints have no such number, the newest being 1-1-3 (it reported acc, loss)"
        in warning
    )


def test_a_dot_reaches_into_nested_metrics() -> None:
    committed = [
        Scored(CheckpointId(1, 1, 1), {"eval": {"acc": 2}}),
        Scored(CheckpointId(1, 1, 2), {"eval.acc": 1}),
        Scored(CheckpointId(1, 1, 3), {"eval": 3}),
    ]
    assert plan(committed, Policy(1, "eval.acc")).best == CheckpointId(1, 1, 1)


@given(
    st.lists(st.sampled_from([1, 2.5, nan, inf, ..., "x"]), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from([None, "acc"]),
    st.sets(st.integers(1, 8)),
)
def test_always_kept(scores: list[Any], keep: int, attribute: str | None, protect: set[int]) -> None:
    removed = indexes(planned(scores, Policy(keep, attribute), tuple(protect)).remove)
    assert len(scores) not in removed and not protect & set(removed)
    assert len(scores) - len(removed) >= min(keep, len(scores))
    assert len(scores) - len(removed) <= keep + 1 + len(protect)


def test_manifests_go_and_files_after_them(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for n in range(1, 5):
        job.save(f"1-1-{n}", metrics={"acc": -n, "note": "text", "bad": nan})
    done = Retainer(job.store, 1).retain(Policy(1, "acc"), {CheckpointId(1, 1, 2)})
    assert [str(id_) for id_ in done.removed] == ["1-1-3"]
    assert job.good() == job.folders() == ["1-1-1", "1-1-2", "1-1-4"]
    assert done.committed == 3 and done.latest is not None and done.best is not None
    assert (str(done.latest.id), str(done.best.id), done.latest.total_bytes) == ("1-1-4", "1-1-1", 359)


def test_nothing_is_removed_without_keep(tmp_path: Path) -> None:
    job = Job(tmp_path)
    retainer = Retainer(job.store, 1)
    assert retainer.retain(Policy(), set()) == ((), 0, None, None, ())
    for n in range(1, 4):
        job.save(f"1-{n}-1")
    job.share("1-1-9", 0)
    assert retainer.retain(Policy(), set()).committed == 3
    assert job.folders() == ["1-1-1", "1-1-9", "1-2-1", "1-3-1"]


def test_other_runs_are_not_touched_and_nothing_once_a_later_run_exists(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert settle(job.store, "uid-1", "auto", []).run == 1
    for id_ in ("1-1-1", "1-1-2", "1-1-3"):
        job.save(id_)
    assert settle(job.store, "uid-2", "auto", []).run == 2
    job.save("2-1-1")
    job.save("2-1-2")
    assert Retainer(job.store, 1).retain(Policy(1), set()).removed == ()
    assert [str(i) for i in Retainer(job.store, 2).retain(Policy(1), set()).removed] == ["2-1-1"]
    assert job.folders() == ["1-1-1", "1-1-2", "1-1-3", "2-1-2"]
    assert runs.overtaken(job.store, 1) and not runs.overtaken(job.store, 2)


def test_unfinished_uploads_of_earlier_attempts_go_unless_protected(any_store: Store, tmp_path: Path) -> None:
    job = Job(tmp_path, any_store)
    for id_ in ("1-1-1", "1-1-2", "1-2-3", "1-2-9"):
        job.share(id_, 0)
    job.save("1-2-5")
    job.save("1-2-6")
    job.store.create(layout.damaged_key(CheckpointId(1, 2, 5)), b"{}")
    done = Retainer(job.store, 1).retain(Policy(3), {CheckpointId(1, 1, 2)})
    assert done.removed == () and done.committed == 1
    assert job.folders() == ["1-1-2", "1-2-3", "1-2-6", "1-2-9"]


@pytest.mark.parametrize("policy", [Policy(), Policy(score_attribute="acc"), Policy(2)])
def test_a_late_commit_costs_no_more_than_an_early_one(any_store: Store, tmp_path: Path, policy: Policy) -> None:
    job, costs = Job(tmp_path, any_store), []
    counted: Any = Interposed(any_store, 0, lambda: None)
    retainer = Retainer(counted, 1)
    for n in range(1, 13):
        job.save(f"1-1-{n}", metrics={"acc": n})
        before = counted.calls
        assert retainer.retain(policy, set()).committed == (n if policy.keep is None else min(n, policy.keep))
        costs.append(counted.calls - before)
    assert costs[11] <= costs[4], costs


@pytest.mark.parametrize("policy", [Policy(), Policy(score_attribute="acc")])
def test_after_a_restart_a_commit_looks_at_no_checkpoint_of_before(
    any_store: Store, tmp_path: Path, policy: Policy
) -> None:
    job, costs = Job(tmp_path, any_store), []
    counted: Any = Interposed(any_store, 0, lambda: None)
    retainer = Retainer(counted, 1, attempt=1)
    for attempt in range(1, 13):
        job.save(f"1-{attempt}-{attempt}", metrics={"acc": attempt})
        before = counted.calls
        retainer.begin(attempt)
        assert retainer.retain(policy, set()).committed == attempt
        costs.append(counted.calls - before)
    assert costs[11] <= costs[4], costs


def test_the_storage_child_remembers_one_retainer_whatever_the_number_of_attempts(tmp_path: Path) -> None:
    job, kept, retainers = Job(tmp_path), _Retention(), []
    for attempt in range(1, 4):
        job.save(f"1-{attempt}-{attempt}")
        kept(job.store, {"run": 1, "attempt": attempt, "keep": 1}, nothing)
        retainers.append(kept._retainer)
    first = retainers[0]
    assert first is not None and retainers == [first] * 3 and job.good() == ["1-3-3"]
    assert [str(id_) for id_ in first._known] == ["1-2-2", "1-3-3"], "what was removed before is not remembered"


def test_a_checkpoint_that_an_attempt_began_and_did_not_finish_goes_with_the_next_one(tmp_path: Path) -> None:
    """What is looked for once an attempt is looked for in each."""
    job, kept = Job(tmp_path), _Retention()
    job.save("1-1-1")
    kept(job.store, {"run": 1, "attempt": 1, "keep": 1}, nothing)
    job.share("1-1-2", 0)
    job.save("1-2-3")
    kept(job.store, {"run": 1, "attempt": 2, "keep": 1}, nothing)
    assert job.folders() == ["1-2-3"]


def test_of_all_that_are_kept_a_marked_one_is_neither_the_latest_nor_the_best(any_store: Store, tmp_path: Path) -> None:
    job, retainer = Job(tmp_path, any_store), Retainer(any_store, 1)
    for n in (1, 2, 3):
        job.save(f"1-1-{n}", metrics={"acc": n})
    policy = Policy(score_attribute="acc")
    assert retainer.retain(policy, set()).committed == 3
    any_store.create(layout.damaged_key(CheckpointId(1, 1, 3)), b"{}")
    done = retainer.retain(policy, set())
    assert (
        done.latest is not None
        and done.best is not None
        and (str(done.latest.id), str(done.best.id), done.committed) == ("1-1-2", "1-1-2", 2)
    )
