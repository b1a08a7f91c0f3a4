"""From ends of ranks and pods to one incident with its first cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.core import World, ended, raised, seconds
from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core import groups
from trainjob_operator.core.answers import Hold
from trainjob_operator.core.decide import decide
from trainjob_operator.core.ends.failures import INTERRUPTED_WAIT_S
from trainjob_operator.core.ends.incident import Incident
from trainjob_operator.core.ends.plain_ends import KUBELETS_WAIT_S
from trainjob_operator.core.model import Observed, PodPhase
from trainjob_operator.core.turn import Turn


def world(**fields: Any) -> World:
    running = World.of(**{"workers": 3} | fields).run().tick(60)
    running.sync_all()
    return running


def find(w: World) -> Incident | Hold | None:
    turn = Turn.of(w.observe(), w.now)
    return groups.of(turn).find_end(turn)


def incident(w: World) -> Incident:
    found = find(w)
    assert isinstance(found, Incident)
    return found


@pytest.mark.parametrize(
    ("report", "reason", "words", "counted"),
    [
        (
            raised(1, "ValueError", "bad shape"),
            contract.REASON_USER_ERROR,
            "rank 1 on digits-1 raised ValueError: bad shape",
            True,
        ),
        (ended(1, contract.END_EXIT, exit_code=3), contract.REASON_EXIT, "ended with exit code 3", True),
        (ended(1, contract.END_SIGNAL, signal=9), contract.REASON_SIGNAL, "was killed by SIGKILL", True),
        (
            ended(1, contract.END_OOM, signal=9, error={"type": "OutOfMemory", "message": "its limit of 2 GiB"}),
            contract.REASON_OOM,
            "rank 1 on digits-1 was killed by SIGKILL: out of memory. its limit of 2 GiB",
            True,
        ),
        (ended(1, contract.END_SIGNAL, signal=99), contract.REASON_SIGNAL, "was killed by signal 99", True),
        (ended(1, contract.END_START, exit_code=1), contract.REASON_START, "cannot start", True),
        (ended(1, contract.END_DAMAGED), contract.REASON_DAMAGED, "damaged", False),
        (ended(1, contract.END_LOST), contract.REASON_CONTAINER_RESTARTED, "container was started again", True),
        (ended(1, contract.END_STORAGE), contract.REASON_STORAGE, "storage", True),
        (ended(1, contract.END_FULL), contract.REASON_STAGING_FULL, "no room for its checkpoint", True),
        (ended(1, contract.END_EARLY), contract.REASON_RANK_ENDED_EARLY, "while others waited for it", True),
        (ended(1, contract.END_NOT_SHARED), contract.REASON_NOT_SHARED, "not the same folder in all pods", True),
        (ended(1, contract.END_INTERNAL), contract.REASON_INTERNAL, "ended by its agent", True),
        (RankReport(rank=1, state=contract.RANK_ENDED, exit_code=7), contract.REASON_EXIT, "exit code 7", True),
    ],
)
def test_a_ranks_end(report: RankReport, reason: str, words: str, counted: bool) -> None:
    w = world()
    w.break_rank(1, report)
    found = incident(w)
    assert (found.reason, found.counted, found.rank, found.slot, found.pod, found.node) == (
        reason,
        counted,
        1,
        1,
        "digits-1",
        "node-1",
    )
    assert words in found.message
    assert found.victims == 2


@pytest.mark.parametrize(
    "report",
    [
        ended(1, contract.END_OK, exit_code=0),
        RankReport(rank=1, state=contract.RANK_ENDED, exit_code=0),
        RankReport(rank=1, state=contract.RANK_RUNNING),
        RankReport(),
    ],
)
def test_what_is_no_failure(report: RankReport) -> None:
    w = world()
    w.break_rank(1, report)
    assert find(w) is None


def test_ranks_that_their_agent_stopped_without_a_cause_end_the_attempt_uncounted_after_a_while() -> None:
    w = world()
    w.break_rank(1, ended(1, contract.END_STOPPED, signal=9, at=w.now))
    assert isinstance(find(w), Hold)
    w.tick(INTERRUPTED_WAIT_S)
    found = incident(w)
    assert (found.reason, found.counted, found.strikes, found.rank) == (contract.REASON_INTERRUPTED, False, False, 1)
    assert "was stopped by its agent" in found.message


def test_a_cause_that_comes_in_meanwhile_wins_over_stopped_ranks() -> None:
    w = world()
    w.break_rank(1, ended(1, contract.END_STOPPED, signal=9, at=w.now))
    w.break_rank(2, raised(2, "ValueError", at=w.now))
    assert incident(w).rank == 2


def test_the_earliest_end_is_the_cause_whoever_spoke_first() -> None:
    w = world()
    w.break_rank(0, ended(0, contract.END_SIGNAL, signal=6, at=w.now - seconds(1)))
    w.break_rank(2, raised(2, "ValueError", at=w.now - seconds(3)))
    found = incident(w)
    assert (found.rank, found.victims) == (2, 2)


def test_agents_clocks_are_corrected() -> None:
    w = world()
    w.break_rank(0, raised(0, "First", at=w.now - seconds(1)))
    # This agent's clock is an hour behind: what it dates an hour back happened just now.
    w.break_rank(2, raised(2, "Second", at=w.now - timedelta(hours=1)))
    w.sync(2, clock_offset=timedelta(hours=1))
    assert incident(w).rank == 0


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), 1e300, -1e300])
def test_a_broken_clock_breaks_nothing(moment: float) -> None:
    w = world()
    w.break_rank(1, {**raised(1, "ValueError"), "ended_at": moment})
    assert incident(w).time == w.now


def test_a_communication_error_waits_for_the_word_of_the_lost() -> None:
    w = world()
    w.break_rank(0, raised(0, "DistBackendError", "connection closed by peer", communication=True, at=w.now))
    found = find(w)
    assert isinstance(found, Hold)
    assert found.until == w.now + seconds(5)
    w.tick(4)
    w.break_rank(2, ended(2, contract.END_SIGNAL, signal=11, at=w.now))
    assert (incident(w).rank, incident(w).reason) == (2, contract.REASON_SIGNAL)


def test_a_communication_error_alone_is_the_cause_after_five_seconds() -> None:
    w = world()
    w.break_rank(0, raised(0, "DistBackendError", communication=True, at=w.now))
    w.sync(1, lost_peers=(2, 77))
    w.tick(5).sync(2)
    found = incident(w)
    assert (found.reason, found.strikes) == (contract.REASON_COMMUNICATION, False)
    assert found.message.endswith("(not reachable for its peers: digits-2)")


def test_a_communication_error_waits_for_a_rank_that_raised_and_is_still_ending() -> None:
    w = world()
    error = contract.RankError(type="ValueError", message="gone", traceback="", communication=False)
    w.sync(2, ranks=[contract.RankReport(rank=2, local_rank=0, pid=7, state=contract.RANK_RUNNING, error=error)])
    w.break_rank(0, raised(0, "RankGoneError", communication=True, at=w.now))
    w.tick(7).sync(0)
    found = find(w)
    assert isinstance(found, Hold) and "rank 2, which raised" in found.why
    w.tick(7)
    w.break_rank(2, raised(2, "ValueError", "gone", at=w.now))
    assert (incident(w).rank, incident(w).reason) == (2, contract.REASON_USER_ERROR)


def raises(w: World, rank: int, type_: str) -> contract.RankReport:
    """It has told so just now; its process is still there."""
    error = contract.RankError(type=type_, message="gone", traceback="", communication=False)
    report = contract.RankReport(
        rank=rank, local_rank=0, pid=7, state=contract.RANK_RUNNING, error=error, raised_at=w.now.timestamp()
    )
    w.sync(rank, ranks=[report])
    return report


@pytest.mark.parametrize("end", [contract.END_EXIT, contract.END_EXCEPTION, contract.END_SIGNAL])
def test_whoever_raised_first_is_the_cause_however_long_its_clean_up_takes(end: str) -> None:
    """The others end because of it, and need not say so: a script catches what it is told, and exits with 1."""
    w = world()
    told = raises(w, 2, "ValueError")
    w.tick(1)
    w.break_rank(0, ended(0, end, exit_code=1, at=w.now))
    w.sync(2, ranks=[told])
    found = find(w)
    assert isinstance(found, Hold) and "rank 2, which raised" in found.why
    w.tick(9)
    w.break_rank(2, {**raised(2, "ValueError", "gone", at=w.now), "raised_at": told["raised_at"]})
    assert (incident(w).rank, incident(w).reason) == (2, contract.REASON_USER_ERROR)
    assert incident(w).time == w.now - seconds(10), "it broke when it raised"


def test_who_raises_after_the_first_end_is_not_waited_for() -> None:
    w = world()
    w.break_rank(0, ended(0, contract.END_SIGNAL, signal=9, at=w.now))
    w.tick(1)
    raises(w, 2, "ValueError")
    assert incident(w).rank == 0


def test_a_rank_that_never_ends_is_not_waited_for_for_ever() -> None:
    w = world()
    error = contract.RankError(type="ValueError", message="gone", traceback="", communication=False)
    w.sync(2, ranks=[contract.RankReport(rank=2, local_rank=0, pid=7, state=contract.RANK_RUNNING, error=error)])
    w.break_rank(0, raised(0, "RankGoneError", communication=True, at=w.now))
    w.tick(16).sync(2)
    assert (incident(w).rank, incident(w).reason) == (0, contract.REASON_COMMUNICATION)


def test_nobody_is_waited_for_when_all_have_spoken() -> None:
    w = world()
    for slot in range(3):
        w.break_rank(slot, raised(slot, "DistBackendError", communication=True, at=w.now))
    assert incident(w).rank == 0


def test_a_clock_ahead_does_not_put_off_the_verdict() -> None:
    w = world()
    w.break_rank(0, raised(0, "DistBackendError", communication=True, at=w.now + timedelta(days=1)))
    assert isinstance(find(w), Hold)
    w.tick(5)
    assert incident(w).reason == contract.REASON_COMMUNICATION


def test_a_rank_that_ended_early_is_named_and_not_the_one_that_needed_it() -> None:
    w = world()
    w.break_rank(1, ended(1, contract.END_OK, exit_code=0))
    assert find(w) is None
    w.break_rank(0, raised(0, "RuntimeError", "Connection closed by peer", communication=True, at=w.now))
    w.tick(5)
    found = incident(w)
    assert (found.reason, found.rank, found.victims) == (contract.REASON_RANK_ENDED_EARLY, 1, 1)
    assert (found.slot, found.pod, found.exit_code) == (1, "digits-1", 0)
    assert found.message == (
        "rank 1 on digits-1 ended with exit code 0 while others needed it: rank 0 raised RuntimeError: Connection "
        "closed by peer"
    )
    assert found.traceback is not None and "Connection closed" in found.traceback


def test_words_about_an_older_attempt_are_stale() -> None:
    w = world()
    w.break_rank(1, raised(1, "ValueError"))
    w.sync(1, attempt=0)
    assert find(w) is None


def test_silence_is_no_verdict() -> None:
    w = world()
    w.agents.clear()
    assert find(w.tick(3600)) is None


@pytest.mark.parametrize(
    ("fields", "reason", "counted", "words"),
    [
        ({"phase": PodPhase.FAILED, "exit_code": 80}, contract.REASON_POD_FAILED, True, "ended with exit code 80"),
        (
            {"phase": PodPhase.FAILED, "exit_code": 137, "reason": "OOMKilled"},
            contract.REASON_OOM,
            True,
            "SIGKILL (OOMKilled)",
        ),
        (
            {"phase": PodPhase.FAILED, "exit_code": 137, "disrupted": True},
            contract.REASON_PREEMPTED,
            False,
            "(disruption)",
        ),
        ({"phase": PodPhase.FAILED, "exit_code": 81}, contract.REASON_POD_FAILED, False, "81"),
        ({"phase": PodPhase.SUCCEEDED, "exit_code": 0}, contract.REASON_POD_FAILED, False, "exit code 0"),
        ({"deleting": True}, contract.REASON_POD_LOST, True, "is being deleted"),
        ({"deleting": True, "disrupted": True}, contract.REASON_PREEMPTED, False, "is being deleted (disruption)"),
    ],
)
def test_a_members_pod(fields: dict[str, Any], reason: str, counted: bool, words: str) -> None:
    w = world(processes_per_worker=2)
    w.set_pod(1, **fields)
    found = incident(w)
    assert (found.reason, found.counted, found.pod, found.node, found.strikes) == (
        reason,
        counted,
        "digits-1",
        "node-1",
        False,
    )
    assert words in found.message
    assert found.victims == 4


def test_a_pod_that_is_gone() -> None:
    w = world()
    w.lose_pod(1)
    assert (incident(w).reason, incident(w).message) == (contract.REASON_POD_LOST, "digits-1 is gone")


def test_a_lost_pod_goes_before_its_peers_communication_errors() -> None:
    w = world()
    w.break_rank(0, raised(0, "DistBackendError", communication=True, at=w.now - seconds(1)))
    w.lose_pod(1)
    assert incident(w).reason == contract.REASON_POD_LOST


def test_ranks_of_a_pod_that_is_taken_away_are_its_victims() -> None:
    w = world()
    w.break_rank(1, ended(1, contract.END_SIGNAL, signal=15, at=w.now - seconds(1)))
    w.set_pod(1, deleting=True)
    assert incident(w).reason == contract.REASON_POD_LOST


def test_a_rank_that_broke_before_another_pod_failed_is_the_cause() -> None:
    w = world()
    w.break_rank(0, raised(0, "ValueError", at=w.now - seconds(5)))
    w.fail_pod(1, 137)
    assert incident(w).rank == 0


@pytest.mark.parametrize(
    ("exit_code", "fields", "reason"),
    [
        (1, {}, contract.REASON_EXIT),
        (139, {}, contract.REASON_SIGNAL),
        (137, {"reason": "OOMKilled"}, contract.REASON_OOM),
        (80, {}, contract.REASON_EXIT),
    ],
)
def test_plain_mode_reads_the_container(exit_code: int, fields: dict[str, Any], reason: str) -> None:
    w = World.of(workers=2, runtime={"agent": "Disabled"}).run()
    w.fail_pod(1, exit_code, **fields)
    w.tick(KUBELETS_WAIT_S)
    assert (incident(w).reason, incident(w).counted, incident(w).exit_code) == (reason, True, exit_code)


def test_plain_mode_a_worker_that_succeeded_is_no_loss() -> None:
    w = World.of(workers=2, runtime={"agent": "Disabled"}).run()
    w.set_pod(1, phase=PodPhase.SUCCEEDED, exit_code=0)
    assert find(w) is None


def test_texts_are_bounded() -> None:
    w = world()
    w.break_rank(
        1,
        {
            **raised(1, "ValueError", "x" * 5000),
            "error": {"type": "E", "message": "m" * 5000, "traceback": "a" * 5000 + "end"},
        },
    )
    failure = incident(w).failure(1)
    assert len(failure.message) == contract.MESSAGE_LIMIT
    assert failure.traceback is not None
    assert (len(failure.traceback), failure.traceback[-3:]) == (contract.TRACEBACK_LIMIT, "end")


def test_a_pod_that_failed_before_another_rank_broke_is_the_cause() -> None:
    w = world()
    w.fail_pod(1, 137)
    w.tick(5).break_rank(0, raised(0, "ValueError", at=w.now))
    assert incident(w).pod == "digits-1"


def test_ranks_of_a_preempted_pod_are_no_failure() -> None:
    w = world()
    w.break_rank(1, ended(1, contract.END_SIGNAL, signal=15, at=w.now - seconds(5)))
    w.fail_pod(1, 143, disrupted=True)
    assert (incident(w).reason, incident(w).counted) == (contract.REASON_PREEMPTED, False)


def test_a_pod_that_came_late_under_a_members_name_is_no_member() -> None:
    w = world()
    w.set_pod(1, uid="uid-late")
    w.agents.pop(1)
    found = incident(w)
    assert (found.reason, found.slot, found.counted, found.victims) == (contract.REASON_POD_LOST, 1, True, 2)
    assert "another pod has its name" in found.message


def test_the_digest_covers_every_members_pod_in_index_order() -> None:
    w = world()
    assert w.attempt.members_digest is not None
    a, b = w.pod(0).uid, w.pod(1).uid
    w.set_pod(0, uid=b)
    w.set_pod(1, uid=a)
    assert incident(w).reason == contract.REASON_POD_LOST


def test_a_container_that_its_memory_limit_ended_is_out_of_memory_though_it_runs_again() -> None:
    w = world()
    w.set_pod(1, restarts=1, last_reason="OOMKilled")
    w.break_rank(1, ended(1, contract.END_LOST))
    w.sync(1, boot=2)
    found = incident(w)
    assert (found.reason, found.counted, found.rank) == (contract.REASON_OOM, True, 1)
    assert "memory limit" in found.message


def test_a_later_end_in_that_pod_has_its_own_cause() -> None:
    w = world()
    w.set_pod(1, restarts=1, last_reason="OOMKilled")
    w.break_rank(1, ended(1, contract.END_EXIT, exit_code=3))
    assert incident(w).reason == contract.REASON_EXIT


def test_the_kubelets_word_on_a_restart_is_waited_for_but_not_for_long() -> None:
    w = world()
    w.set_pod(1, restarts=0)
    w.break_rank(1, ended(1, contract.END_LOST, at=w.now))
    w.sync(1, boot=2)
    assert isinstance(find(w), Hold)
    w.tick(2)
    assert incident(w).reason == contract.REASON_CONTAINER_RESTARTED
    w.set_pod(1, restarts=1, last_reason="Error")
    assert incident(w).reason == contract.REASON_CONTAINER_RESTARTED


def test_a_restarted_container_alone_is_no_failure() -> None:
    w = world()
    w.set_pod(1, restarts=2, last_reason="Error")
    assert find(w) is None


def test_a_member_that_crashes_again_and_again_is_lost() -> None:
    w = world()
    w.set_pod(
        1,
        phase=PodPhase.PENDING,
        crashing=True,
        restarts=3,
        reason="CrashLoopBackOff",
        exit_code=127,
        last_reason="Error",
    )
    found = incident(w)
    assert (found.reason, found.pod, found.exit_code) == (contract.REASON_POD_FAILED, "digits-1", 127)
    w.turn()
    assert w.pod(1).deleting and "1" not in w.status.slots.split(","), "its pod is deleted, not left to go on crashing"


def test_the_words_of_a_disruption_are_told() -> None:
    w = world()
    w.set_pod(1, deleting=True, disrupted=True, disruption="its node n1 is cordoned")
    assert incident(w).message == "digits-1 is being deleted (disruption: its node n1 is cordoned)"


@pytest.mark.parametrize("code", contract.AGENT_EXITS)
def test_without_an_agent_every_exit_code_is_the_scripts_own(code: int) -> None:
    rules = {"maxFailures": 9, "rules": [{"exitCodes": [code], "action": "Fail"}]}
    world = World.of(workers=2, runtime={"agent": "Disabled"}, failure_policy=rules).run().tick(60)
    world.fail_pod(1, code)
    world.tick(KUBELETS_WAIT_S)
    world.turn()
    failed = world.status.condition("Failed")
    assert failed is not None and failed.reason == contract.REASON_RULE


def test_an_agents_exit_code_is_no_matter_of_rules() -> None:
    rules = {"maxFailures": 9, "rules": [{"exitCodes": [84], "action": "Fail"}]}
    world = World.of(workers=2, failure_policy=rules).run().tick(60)
    world.fail_pod(1, contract.EXIT_BAD_CONFIG)
    world.turn()
    assert not world.status.finished and world.status.failures.counted == 1


def test_a_cause_that_was_heard_is_not_replaced_by_the_deletion_of_its_pod() -> None:
    """While rank 0's word is waited for, somebody deletes the pod whose rank had raised."""
    world = World.of(workers=2).run().tick(60)
    world.mute = {0}
    world.tick(5).break_rank(1, raised(1, "ValueError", "bad batch"), unheard=True)
    world.turn()
    assert world.attempt.number == 1 and world.attempt.state == "Running", (
        "rank 0's agent may know how far training came"
    )
    world.set_pod(1, deleting=True)
    world.tick(5).turn()
    failure = world.status.last_failure
    assert failure is not None and (failure.reason, failure.rank) == (contract.REASON_USER_ERROR, 1)


def test_a_pod_did_not_end_before_its_agent_spoke_whatever_its_kubelets_clock_says() -> None:
    """A node an hour behind: its pod's end would go before the rank that broke first."""
    w = world()
    w.break_rank(0, raised(0, "ValueError", at=w.now))
    w.tick(3)
    w.sync(2)
    w.fail_pod(2, 1)
    w.set_pod(2, finished_at=w.now - timedelta(hours=1))
    found = incident(w)
    assert (found.reason, found.slot) == (contract.REASON_USER_ERROR, 0)


def gone(w: World, slot: int, **word: Any) -> Observed:
    """A member's pod goes between two looks, right after its agent has said that."""
    w.sync(slot, **word)
    view = w.agents[slot]
    w.lose_pod(slot)
    return replace(w.observe(), parted={slot: view})


def test_what_a_rank_said_of_its_exception_outlives_its_pod() -> None:
    w = world()
    seen = gone(w, 1, ranks=(raised(1, "ValueError", "bad shape", at=w.now),))
    turn = Turn.of(seen, w.now + seconds(1))
    found = groups.of(turn).find_end(turn)
    assert isinstance(found, Incident) and (found.reason, found.pod) == (contract.REASON_USER_ERROR, "digits-1")
    assert "bad shape" in found.message and found.traceback


@pytest.mark.parametrize(
    ("report", "taken"),
    [
        (ended(1, contract.END_SIGNAL, signal=15), {}),
        (raised(1, "SystemExit", "SIGTERM"), {1: "its node node-1 is cordoned"}),
    ],
)
def test_what_ended_because_its_pod_went_is_no_cause(report: RankReport, taken: dict[int, str]) -> None:
    w = world()
    seen = replace(gone(w, 1, ranks=(report,)), disruptions=taken)
    turn = Turn.of(seen, w.now)
    found = groups.of(turn).find_end(turn)
    assert isinstance(found, Incident)
    assert found.reason == (contract.REASON_PREEMPTED if taken else contract.REASON_POD_LOST)


def test_that_training_is_complete_outlives_the_pod_that_said_so() -> None:
    w = world()
    decision = decide(gone(w, 1, completed=True), w.now + seconds(60))
    assert decision.status.holds("Complete")


def test_an_edit_while_a_cause_is_looked_for_makes_nobody_forget_the_failure() -> None:
    w = world(failure_policy={"maxFailures": 3})
    w.break_rank(0, raised(0, "DistBackendError", communication=True, at=w.now))
    w.change_spec(workers=2)
    w.turn()
    assert w.attempt.state == "Running"
    w.break_rank(1, raised(1, "ValueError", at=w.now))
    w.turn()
    assert w.status.history[-1].end_cause == contract.REASON_USER_ERROR and w.status.failures.counted == 1
    assert w.attempt.workers == 2


@pytest.mark.parametrize("agent", ["auto", "Disabled"])
@pytest.mark.parametrize(
    ("message", "reason", "words", "counted"),
    [
        (
            'Usage of EmptyDir volume "trainjob-work" exceeds the limit "30Mi". ',
            contract.REASON_STAGING_FULL,
            "its staging volume grew beyond 30Mi: raise spec.checkpoint.staging.sizeLimit",
            True,
        ),
        (
            'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ',
            contract.REASON_STAGING_FULL,
            "its volume scratch grew beyond 1Gi: raise emptyDir.sizeLimit of that volume in spec.template",
            True,
        ),
        (
            'Container trainer exceeded its local ephemeral storage limit "2Gi". ',
            contract.REASON_STAGING_FULL,
            "container trainer grew beyond its 2Gi of ephemeral storage: raise resources.limits.ephemeral-storage",
            True,
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
            contract.REASON_STAGING_FULL,
            "it grew beyond its 2Gi of ephemeral storage: raise resources.limits.ephemeral-storage",
            True,
        ),
        (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. ",
            contract.REASON_PREEMPTED,
            "The node was low on resource: memory",
            False,
        ),
    ],
)
def test_a_worker_that_the_kubelet_evicted_is_told_by_whose_limit_it_was(
    message: str, reason: str, words: str, counted: bool, agent: str
) -> None:
    w = World.of(workers=2, runtime={"agent": agent}, failure_policy={"max_failures": 3}).run()
    w.fail_pod(1, 137, reason="Evicted", message=message)
    w.tick(KUBELETS_WAIT_S).turn()
    failure = w.status.last_failure
    assert failure is not None and (failure.reason, failure.pod) == (reason, "digits-1")
    assert failure.message.startswith("digits-1 was evicted by the kubelet (") and words in failure.message
    assert (w.status.failures.counted, w.status.failures.preemptions) == ((1, 0) if counted else (0, 1))


@pytest.mark.parametrize(
    ("other", "victims"),
    [("KeyError", 1), ("ValueError", 2)],
    ids=["the same error", "another one"],
)
def test_ranks_that_raised_the_same_error_themselves_did_not_end_because_of_it(other: str, victims: int) -> None:
    w = world()
    w.break_rank(0, raised(0, "KeyError", at=w.now - seconds(1)))
    w.break_rank(2, raised(2, other, at=w.now))
    found = incident(w)
    assert (found.rank, found.victims) == (0, victims)


def test_a_long_cause_shows_in_the_history_that_it_was_cut() -> None:
    w = world()
    w.break_rank(0, raised(0, "ValueError", "x" * 2000, at=w.now))
    w.turn()
    told = w.status.history[-1].message
    assert told is not None and told.endswith("x...") and len(told) == contract.ENDED_LIMIT
    assert w.status.last_failure is not None and w.status.last_failure.message.endswith("...")


@pytest.mark.parametrize(("code", "victims"), [(3, 1), (4, 2)], ids=["the same code", "another one"])
def test_ranks_that_left_with_the_same_code_did_not_end_because_of_it(code: int, victims: int) -> None:
    w = world()
    w.break_rank(0, ended(0, contract.END_EXIT, exit_code=3, at=w.now - seconds(1)))
    w.break_rank(2, ended(2, contract.END_EXIT, exit_code=code, at=w.now))
    found = incident(w)
    assert (found.rank, found.victims) == (0, victims)


def test_a_rank_that_lost_its_peer_with_an_error_of_that_type_did_end_because_of_it() -> None:
    w = world()
    w.break_rank(0, raised(0, "RuntimeError", at=w.now - seconds(1)))
    w.break_rank(2, raised(2, "RuntimeError", communication=True, at=w.now))
    assert incident(w).victims == 2


def test_the_traceback_ends_with_the_words_of_the_cause_so_that_they_are_shown_once() -> None:
    w = world()
    report = raised(0, "RuntimeError", "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer", at=w.now)
    error = report["error"]
    assert error is not None
    error["traceback"] = f"Traceback (most recent call last):\nRuntimeError: {error['message']}"
    w.break_rank(0, report)
    found = incident(w)
    assert found.traceback is not None and found.message.endswith(found.traceback.splitlines()[-1])
