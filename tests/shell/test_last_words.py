"""What ended agents left in termination messages, as the rules get to see it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.clusters import NAMESPACE, manifest, plain_pod
from support.virtual_time import EPOCH
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.last_words import with_last_words
from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.manifests import pod_view

JOB = TrainJob.model_validate({**manifest(), "metadata": {**manifest()["metadata"], "uid": "job-uid"}})
RULES = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0, *range(80, 90)]}}]
FAILED = "trainjob: ended run=1 attempt=2 code=81 rank=3 kind=exit exit=7 at=1893456000.500"
COMPLETED = "trainjob: completed run=1 attempt=2"


def pod(
    message: str | None,
    code: int = 81,
    *,
    phase: str = "Failed",
    state: str = "terminated",
    owner: str = "job-uid",
    **ended: Any,
) -> PodView:
    made = plain_pod("digits-3", owner={"metadata": {"uid": owner}}, slot=3)
    made["metadata"] |= {"uid": "pod-uid", "namespace": NAMESPACE, "creationTimestamp": "2030-01-01T00:00:00Z"}
    made["spec"]["containers"][0]["restartPolicyRules"] = RULES
    terminated = {
        "exitCode": code,
        "reason": "Error",
        "finishedAt": "2030-01-01T00:10:00Z",
        "message": message,
        **ended,
    }
    status: dict[str, Any] = {"name": made["spec"]["containers"][0]["name"], "restartCount": 1}
    status |= (
        {"state": {"terminated": terminated}}
        if state == "terminated"
        else {"state": {"running": {}}, "lastState": {"terminated": terminated}}
    )
    return pod_view({**made, "status": {"phase": phase, "containerStatuses": [status]}}, JOB)


def heard(**fields: Any) -> AgentView:
    return AgentView(slot=3, pod_uid="pod-uid", boot=1, heard_at=EPOCH, address="10.0.0.3:7000", **fields)


def test_nobody_was_heard_the_message_speaks() -> None:
    view = with_last_words({}, [pod(FAILED)])[3]
    assert (view.pod_uid, view.attempt, view.run, view.boot, view.completed) == ("pod-uid", 2, 1, 2, False)
    assert [(rank["rank"], rank["kind"], rank["exit_code"], rank["ended_at"]) for rank in view.ranks] == [
        (3, "exit", 7, 1893456000.5)
    ]
    assert view.heard_at == pod(FAILED).finished_at and view.clock_offset == timedelta(0)


def test_the_message_of_a_pod_says_nothing_of_another_one_in_its_slot() -> None:
    other = replace(heard(attempt=2), pod_uid="its-successor")
    assert with_last_words({3: other}, [pod(FAILED)]) == {3: other}


def test_people_read_the_sentence_not_the_head() -> None:
    assert pod(FAILED).message == "rank 3 ended with exit code 7"
    assert pod(FAILED + " type=ValueError: bad shape").message == "rank 3 raised ValueError: bad shape"
    assert pod("trainjob: ended attempt=0 code=81: no coordinator for 600 s").message == "no coordinator for 600 s"


def test_the_message_completes_what_was_heard_of_the_same_attempt() -> None:
    before = heard(
        attempt=2,
        run=1,
        joined=True,
        quiet=False,
        ranks=({"rank": 3, "state": contract.RANK_RUNNING},),
        progress={"position": 5},
    )
    after = with_last_words({3: before}, [pod(FAILED)])[3]
    assert (after.progress, after.quiet, [rank["state"] for rank in after.ranks]) == (
        {"position": 5},
        True,
        [contract.RANK_ENDED],
    )
    assert with_last_words({3: before}, [pod(COMPLETED, 0, phase="Succeeded")])[3].completed


SHOWN = '{"progress":{"position":60,"step":60,"metrics":{"loss":0.2}},"latest":{"id":"1-2-60"},"checkpoint_count":3}'


def test_a_complete_run_shows_how_far_it_came() -> None:
    ended = pod(f"{COMPLETED}: {SHOWN}", 0, phase="Succeeded")
    assert ended.message == "training is complete"
    alone = with_last_words({}, [ended])[3]
    stale = heard(attempt=2, run=1, progress={"position": 5}, latest={"id": "1-2-5"}, checkpoint_count=1)
    for view in (alone, with_last_words({3: stale}, [ended])[3]):
        assert view.completed and view.checkpoint_count == 3
        assert view.progress is not None and (view.progress["position"], view.progress["step"]) == (60, 60)
        assert view.latest is not None and view.latest["id"] == "1-2-60"


def test_what_a_complete_agent_said_itself_is_not_less_than_its_last_word() -> None:
    whole = heard(attempt=2, run=1, completed=True, progress={"position": 60, "epoch": 3}, latest={"id": "1-2-60"})
    view = with_last_words({3: whole}, [pod(f"{COMPLETED}: {SHOWN}", 0, phase="Succeeded")])[3]
    assert (view.progress, view.latest, view.checkpoint_count) == (whole.progress, whole.latest, 3)


@pytest.mark.parametrize("shown", ["{", "[]", '{"progress": 7}', '{"latest": {"id": []}}', SHOWN[:-9]])
def test_whatever_it_shows_it_is_complete(shown: str) -> None:
    view = with_last_words({}, [pod(f"{COMPLETED}: {shown}", 0, phase="Succeeded")])[3]
    assert view.completed and (view.progress, view.latest) == (None, None)


def test_what_was_heard_of_a_ranks_end_stays_it_has_a_traceback() -> None:
    told = {
        "rank": 3,
        "state": contract.RANK_ENDED,
        "kind": contract.END_EXIT,
        "exit_code": 7,
        "error": {"traceback": "..."},
    }
    assert with_last_words({3: heard(attempt=2, ranks=(told,))}, [pod(FAILED)])[3].ranks == (told,)


def test_a_message_of_a_newer_attempt_is_by_the_clock_that_was_heard() -> None:
    offset = timedelta(seconds=-40)
    assert with_last_words({3: heard(attempt=1, clock_offset=offset)}, [pod(FAILED)])[3].clock_offset == offset


def test_a_message_of_a_newer_attempt_takes_the_place_of_what_was_heard() -> None:
    view = with_last_words({3: heard(attempt=1, ranks=({"rank": 9, "state": contract.RANK_RUNNING},))}, [pod(FAILED)])[
        3
    ]
    assert view.attempt == 2 and [rank["rank"] for rank in view.ranks] == [3]


@pytest.mark.parametrize(
    "ended",
    [
        pod(COMPLETED, 137),
        pod(COMPLETED, 1),
        pod(COMPLETED, 137, phase="Running"),
        pod(COMPLETED, 137, phase="Running", state="lastState"),
        pod(COMPLETED, 0, phase="Running", state="lastState"),
        pod(COMPLETED, 0, finishedAt=None),
        pod(COMPLETED, 0, owner="another-job"),
        pod(None, 0),
        pod("Traceback (most recent call last): ..."),
    ],
    ids=["killed", "own exit", "starts again", "restarted", "runs", "no time", "foreign", "none", "log lines"],
)
def test_only_an_agent_that_ended_for_good_has_a_last_word(ended: PodView) -> None:
    assert with_last_words({}, [ended]) == {}


def test_a_container_that_was_killed_and_starts_again_is_no_end() -> None:
    assert pod(COMPLETED, 137, phase="Running").phase is PodPhase.PENDING


@pytest.mark.parametrize(
    "numbers", ["attempt=9999999999999999999", "attempt=2 rank=-1", "attempt=2 rank=99999999999999999999 kind=exit"]
)
def test_odd_numbers_do_no_harm(numbers: str) -> None:
    for view in with_last_words({}, [pod(f"trainjob: ended run=1 {numbers} code=81")]).values():
        assert view.attempt <= 2**53 and view.ranks == ()
