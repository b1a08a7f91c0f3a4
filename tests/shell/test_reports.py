"""An agent's word is untrusted: bounded, cleaned, or refused with a sentence."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.virtual_time import EPOCH
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents import report_fields
from trainjob_operator.agents.report_fields import RANKS_LIMIT
from trainjob_operator.agents.reports import BadReport, parse_report, read_report

WHOLE: dict[str, Any] = {
    "namespace": "team",
    "job": "digits",
    "job_uid": "job-uid",
    "slot": 1,
    "pod": "digits-1",
    "pod_uid": "pod-uid",
    "boot": 1,
    "seq": 7,
}


def report(**fields: Any) -> dict[str, Any]:
    return {**WHOLE, **fields}


def test_a_whole_report_becomes_a_view() -> None:
    ranks = [
        {
            "rank": 2,
            "local_rank": 0,
            "pid": 44,
            "state": "ended",
            "kind": "exception",
            "exit_code": 1,
            "ended_at": 5.0,
            "error": {"type": "ValueError", "message": "no", "communication": False},
        }
    ]
    progress = {"position": 3, "step": 30, "total_steps": 100, "epoch": 1, "metrics": {"loss": 0.5}, "time": 4.0}
    document = report(
        address="10.0.0.1:7000",
        attempt=2,
        quiet=False,
        joined=True,
        ranks=ranks,
        progress=progress,
        lost_peers=[0],
        draining=True,
        uploads=1,
        completed=True,
        run=1,
    )
    view = read_report(document).view(EPOCH)
    assert (view.slot, view.pod_uid, view.boot, view.heard_at, view.address) == (
        1,
        "pod-uid",
        1,
        EPOCH,
        "10.0.0.1:7000",
    )
    assert (view.attempt, view.quiet, view.joined, view.draining, view.uploads, view.completed, view.run) == (
        2,
        False,
        True,
        True,
        1,
        True,
        1,
    )
    assert view.ranks[0].get("kind") == "exception" and (view.ranks[0].get("error") or {}).get("message") == "no"
    assert view.progress is not None and view.progress.get("metrics") == {"loss": 0.5}
    assert view.lost_peers == (0,)


def test_the_clocks_difference() -> None:
    agents_clock = EPOCH.timestamp() - 30.0
    assert read_report(report(clock=agents_clock)).view(EPOCH).clock_offset == timedelta(seconds=30)
    assert read_report(report()).view(EPOCH).clock_offset == timedelta(0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "namespace"),
        (json.dumps(report(slot="1")).encode(), "slot"),
        (json.dumps(report(slot=-1)).encode(), "slot"),
        (json.dumps(report(seq=2**60)).encode(), "seq"),
        (json.dumps(report(boot=True)).encode(), "boot"),
        (json.dumps(report(pod_uid="")).encode(), "pod_uid"),
        (json.dumps(report(job="two words")).encode(), "job"),
        (json.dumps(report(ranks=[{"local_rank": 0}])).encode(), "ranks.0.rank"),
        (json.dumps(report(quiet="yes")).encode(), "quiet"),
        (json.dumps(report(progress=[1])).encode(), "progress"),
    ],
)
def test_what_is_no_report_is_refused_with_a_sentence(body: bytes, says: str) -> None:
    with pytest.raises(BadReport) as refused:
        parse_report(body)
    assert says in str(refused.value)
    assert len(str(refused.value)) <= contract.MESSAGE_LIMIT and "\n" not in str(refused.value)


def test_long_texts_are_cut_and_tracebacks_keep_their_end() -> None:
    error = {"type": "T" * 999, "message": "m" * 9999, "traceback": "head" + "t" * 9999 + "ValueError: the end"}
    view = read_report(report(ranks=[{"rank": 0, "error": error}], warning="w" * 9999)).view(EPOCH)
    kept = view.ranks[0].get("error") or {}
    assert len(kept["message"]) == contract.MESSAGE_LIMIT and len(kept["type"]) == 253
    assert len(kept["traceback"]) == contract.TRACEBACK_LIMIT and kept["traceback"].endswith("ValueError: the end")
    assert view.warning is not None and len(view.warning) == contract.MESSAGE_LIMIT


def test_control_characters_and_broken_unicode_are_replaced() -> None:
    body = json.dumps(
        report(ranks=[{"rank": 0, "error": {"message": "\x1b[31mred\x00\ud800 zwei\nZeilen äöü"}}])
    ).encode()
    message = (parse_report(body).view(EPOCH).ranks[0].get("error") or {})["message"]
    assert message == "�[31mred�� zwei\nZeilen äöü"
    message.encode()


def test_metrics_are_finite_numbers_and_few() -> None:
    metrics = {
        "nan": float("nan"),
        "inf": float("inf"),
        "text": "1",
        "flag": True,
        "loss": 1,
        **{f"m{n}": n for n in range(40)},
    }
    body = json.dumps(report(progress={"metrics": metrics})).encode()
    progress = parse_report(body).view(EPOCH).progress or {}
    kept = progress["metrics"]
    assert len(kept) == contract.METRICS_LIMIT
    assert kept["loss"] == 1.0 and not {"nan", "inf", "text", "flag"} & set(kept)


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -1.0, 1e300])
def test_times_that_no_calendar_holds_count_as_not_given(moment: float) -> None:
    body = json.dumps(report(clock=moment, ranks=[{"rank": 0, "ended_at": moment}])).encode()
    view = parse_report(body).view(EPOCH)
    assert view.clock_offset == timedelta(0)
    assert "ended_at" not in view.ranks[0]


def test_a_number_that_no_float_holds_does_not_silence_the_agent() -> None:
    huge = 10**400
    progress = {"position": 1, "metrics": {"loss": 0.5, "count": huge, "below": -huge}, "time": huge}
    found = parse_report(json.dumps(report(clock=huge, unreached_s=huge, progress=progress)).encode())
    assert found.clock is None and found.unreached_s == 0.0
    assert found.progress is not None and found.progress.metrics == {"loss": 0.5} and found.progress.time is None


def test_a_users_huge_step_does_not_silence_the_agent() -> None:
    progress = read_report(report(progress={"position": 1, "step": 10**30, "epoch": -1})).view(EPOCH).progress or {}
    assert "step" not in progress and progress["epoch"] == -1


def test_fields_of_a_later_version_are_ignored() -> None:
    assert read_report(report(something_new={"a": 1})).slot == 1


def test_what_makes_no_sense_of_a_complete_run_does_not_hide_that_it_is_complete() -> None:
    """It comes from the run's end record, which another version may have written."""
    strange: dict[str, Any] = {"progress": {"position": "far"}, "latest": ["1-2-60"], "checkpoint_count": {}}
    for name, value in strange.items():
        read = read_report(report(completed=True, **{name: value}))
        assert read.completed and read.view(EPOCH).latest is None
        with pytest.raises(BadReport, match=f"field {name}"):
            read_report(report(completed=False, **{name: value}))
    with pytest.raises(BadReport, match="field slot"):
        read_report(report(completed=True, slot="x", **strange))


_ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)
_FIELDS = st.dictionaries(st.sampled_from([*contract.AgentReport.__annotations__]), _ANY, max_size=6)


@given(_FIELDS)
def test_any_fields_give_a_view_or_a_refusal(fields: dict[str, Any]) -> None:
    try:
        view = parse_report(json.dumps(report(**fields)).encode()).view(EPOCH)
    except BadReport:
        return
    json.dumps([view.ranks, view.progress, view.latest, view.best, view.warning], allow_nan=False)


def test_a_report_is_bounded_before_it_is_looked_at() -> None:
    ranks = [{"rank": n, "pid": n} for n in range(10_000)]
    read = read_report({**WHOLE, "ranks": ranks})
    assert len(read.ranks) == RANKS_LIMIT


@pytest.mark.parametrize(
    "acknowledged",
    [
        {"do": {"nested": []}},
        {"do": "x" * 100_000},
        {f"field-{n}": 1 for n in range(1000)},
        {"n" * 1000: 1},
        {"tracking": ["csv"] * 9},
        {"tracking": ["c" * 501]},
        {"tracking": [["csv"]]},
        {"tracking": [1.0]},
    ],
)
def test_what_is_no_instruction_of_ours_counts_as_not_acknowledged(acknowledged: dict[str, Any]) -> None:
    assert read_report({**WHOLE, "acknowledged": acknowledged}).acknowledged is None
    ours = {"do": "run", "attempt": 1, "grace_s": 0.0, "reason": "r" * 1024, "secret": None}
    assert read_report({**WHOLE, "acknowledged": ours}).acknowledged == ours


def test_trackers_can_be_acknowledged() -> None:
    """Else the operator would answer at once, again and again."""
    longest = [f"mlflow={number}".ljust(contract.TRACKING_LIMIT, "m") for number in range(contract.TRACKED_LIMIT)]
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    spec = {"tracking": longest, "checkpoint": {"storage": "/c"}, "template": template}
    job = TrainJob.model_validate({"metadata": {"name": "a"}, "spec": spec})
    told = {"do": "run", "attempt": 1, "tracking": list(job.spec.tracking)}
    assert read_report({**WHOLE, "acknowledged": told}).acknowledged == told


def test_only_a_text_with_something_to_replace_is_looked_at_by_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at each character of each text costs more than all else of a report."""
    looked: list[str] = []

    def category(character: str) -> str:
        looked.append(character)
        return "Ll"

    monkeypatch.setattr(report_fields.unicodedata, "category", category)
    read_report(report(progress={"metrics": {"loss of träning": 0.5}}, warning="slow " * 100))
    assert not looked
    read_report(report(warning="slow\x1b[2J"))
    assert len(looked) == len("slow\x1b[2J")


def test_what_was_learned_is_one_text_for_all_agents_of_a_job_and_bounded() -> None:
    told = {"modules": "pandas," + "x" * (2 * contract.MODULES_LIMIT) + "\x1b"}
    first, second = (read_report(report(forks=dict(told))).forks for _ in range(2))
    assert first is not None and second is not None
    assert first.modules is second.modules and len(first.modules) == contract.MODULES_LIMIT
    cleaned = read_report(report(forks={"modules": "pandas\x1b[2J"})).forks
    assert cleaned is not None and cleaned.modules == "pandas�[2J"
    with pytest.raises(BadReport, match=r"forks\.modules"):
        read_report(report(forks={"modules": ["pandas"]}))
