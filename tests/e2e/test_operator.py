"""Training does not depend on the control side: operator replicas killed and rolled out, the API server gone for a
while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from support import e2e, gated, outages, release
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("operator"), pytest.mark.timeout(1200)]

Figure = Callable[[str, str], None]

STEPS = 250
BEFORE = 6
PACED = ("--steps", str(STEPS), "--pause", "0.1", "--gates", f"{BEFORE},{STEPS - 1}")
"""Steps of a tenth of a second from when the test lets the first gate be passed until it lets the last one be."""
STALL_S = 10.0
"""No step takes longer, unless the outage itself takes more than twice as long: so busy is the machine then with what
starts again beside it. Who waited for its end would wait for all of it.
"""

own_nodes = pytest.mark.skipif(
    "not e2e.has_own_nodes()", reason="the nodes of this cluster are not this machine's containers"
)


def transitions() -> int:
    return int(e2e.get("lease", contract.LEASE_NAME, release.NAMESPACE)["spec"]["leaseTransitions"])


def shown_again(namespace: str) -> None:
    """The step that is done now comes to be shown by `kubectl get tj`: agents and operator have found each other
    again.
    """
    done = gated.steps("count", namespace)[-1].step
    e2e.eventually(
        f"step {done} is shown",
        lambda: int(e2e.job("count", namespace)["status"].get("progress", {}).get("step") or 0) >= done,
    )


def ends_without_a_scratch(namespace: str, figure: Figure, since: float, until: float) -> None:
    """The job completes in its first attempt and did each step once; between the two moments too, without a pause."""
    gated.wait_for_step("count", namespace, STEPS - 2)
    gated.open_gate("count", namespace, STEPS - 1)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["number"] == 1 and gated.counted(job) == 0
    gated.wait_for_steps("count", namespace, range(STEPS))
    done = gated.steps("count", namespace)
    meanwhile = [step.at for step in done if since <= step.at <= until]
    longest = max((later - earlier for earlier, later in pairwise([since, *meanwhile])), default=until - since)
    figure("longest step meanwhile", f"{longest:.2f} s")
    assert meanwhile and longest < max(STALL_S, (until - since) / 2)


def test_a_rolling_upgrade_disturbs_no_step(namespace: str, figure: Figure) -> None:
    gated.start("count", namespace, *PACED)
    gated.wait_for_step("count", namespace, BEFORE - 1)
    leader, before, workers = release.leader(), transitions(), e2e.uids("count", namespace)
    operators = {pod["metadata"]["uid"] for pod in release.pods()}
    gated.open_gate("count", namespace, BEFORE)
    since = time.time()
    e2e.kubectl("rollout", "restart", f"deployment/{release.NAME}", "-n", release.NAMESPACE)
    e2e.kubectl(
        "rollout", "status", f"deployment/{release.NAME}", "-n", release.NAMESPACE, "--timeout=240s", timeout_s=300
    )
    e2e.eventually(
        "only new replicas are left", lambda: not operators & {pod["metadata"]["uid"] for pod in release.pods()}
    )
    e2e.eventually("a new replica leads", lambda: release.leader() not in ("", leader))
    until = time.time()
    figure("rollout of two replicas", f"{until - since:.1f} s")
    assert transitions() > before
    shown_again(namespace)
    assert e2e.uids("count", namespace) == workers
    ends_without_a_scratch(namespace, figure, since, until)


@own_nodes
def test_the_api_server_starts_again_and_no_step_is_lost(namespace: str, figure: Figure) -> None:
    gated.start("count", namespace, *PACED)
    gated.wait_for_step("count", namespace, BEFORE - 1)
    workers = e2e.uids("count", namespace)
    gated.open_gate("count", namespace, BEFORE)
    since = time.time()
    killed = outages.kill_api_server()
    # It may be away for a shorter time than a look at it takes.
    e2e.eventually("another process is there", lambda: outages.api_server() not in ("", killed))
    e2e.eventually("it is back", outages.api_answers)
    until = time.time()
    figure("API server away", f"{until - since:.1f} s")
    shown_again(namespace)
    assert e2e.uids("count", namespace) == workers
    ends_without_a_scratch(namespace, figure, since, until)


@own_nodes
def test_ten_kills_of_the_operator_while_jobs_come_break_and_go(namespace: str, figure: Figure) -> None:
    gated.code(namespace)
    begun = time.monotonic()
    with outages.OperatorKills(seed=11, count=10) as kills:
        e2e.apply(
            gated.looping("ranks", namespace, "--gates", "3,6,9", "--steps", "12"),
            # What is saved is stored: a pod that is deleted by force takes with it what it alone holds.
            gated.looping("pods", namespace, "--gates", "3,6", "--steps", "9", "--mode", "SYNC"),
            gated.looping(
                "broken", namespace, "--raise", "1:4", "--steps", "9", spec={"failurePolicy": {"maxFailures": 1}}
            ),
            *(gated.looping(f"short-{number}", namespace, "--steps", "3", workers=1) for number in range(3)),
        )
        for attempt, gate in ((1, 3), (2, 6), (3, 9)):
            gated.wait_for_step("ranks", namespace, gate - 1, attempt=attempt)
            e2e.kill_rank("ranks-1", namespace, 1)
            assert gated.lost(gated.wait_for_starts("ranks", namespace, attempt + 1, 2)) == 0
            gated.open_gate("ranks", namespace, gate)
        for attempt, gate in ((1, 3), (2, 6)):
            gated.wait_for_step("pods", namespace, gate - 1, attempt=attempt)
            e2e.kubectl("delete", "pod", f"pods-{attempt}", "-n", namespace, "--grace-period=0", "--force")
            assert gated.lost(gated.wait_for_starts("pods", namespace, attempt + 1, 2)) == 0
            gated.open_gate("pods", namespace, gate)
        for name in ("ranks", "pods"):
            e2e.wait_for_condition(name, namespace, "Complete")
        kills.wait()
        e2e.apply(gated.looping("last", namespace, "--steps", "3"))
    figure("killed", "; ".join(kills.done))
    for name in (*(f"short-{number}" for number in range(3)), "last"):
        e2e.wait_for_condition(name, namespace, "Complete")
        job = e2e.job(name, namespace)
        assert (job["status"]["attempt"]["number"], gated.counted(job)) == (1, 0), name
    e2e.eventually("broken has failed", lambda: e2e.condition(e2e.job("broken", namespace), "Failed"))
    figure("ten kills, from apply to the last end", f"{time.monotonic() - begun:.1f} s")
    found = {name: e2e.job(name, namespace) for name in ("ranks", "pods", "broken")}
    assert {name: gated.counted(job) for name, job in found.items()} == {"ranks": 3, "pods": 2, "broken": 2}
    assert {name: job["status"]["attempt"]["number"] for name, job in found.items()} == {
        "ranks": 4,
        "pods": 3,
        "broken": 2,
    }
    assert {name: job["status"]["nextSlot"] for name, job in found.items()} == {"ranks": 2, "pods": 4, "broken": 2}, (
        "no pod too many"
    )
    assert found["broken"]["status"]["lastFailure"]["reason"] == contract.REASON_USER_ERROR
    outages.wait_for_replicas()
