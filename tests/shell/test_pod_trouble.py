"""What kubelets, events, nodes and the API server say of pods that do not come up, from their objects to the
conditions.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from support.clusters import NAMESPACE, Recorder, manifest, plain_pod
from support.simulation import Simulation
from support.virtual_time import EPOCH, VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Rejected
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.loop.observe import observe
from trainjob_operator.loop.status_writes import report_unreadable
from trainjob_operator.manifests import UnreadableJob, pod_view
from trainjob_operator.memory import Call, MemoryCluster, Moment
from trainjob_operator.nodes import on_node
from trainjob_operator.pod_events import disruption_in, with_warnings

JOB = TrainJob.model_validate({**manifest(), "metadata": {**manifest()["metadata"], "uid": "job-uid"}})
RULES = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0, 80, 81, 82]}}]


def view_of(status: dict[str, Any], **spec: Any) -> PodView:
    pod = plain_pod("digits-3", owner={"metadata": {"uid": "job-uid"}}, slot=3)
    pod["metadata"] |= {"uid": "pod-uid", "namespace": NAMESPACE, "creationTimestamp": "2030-01-01T00:00:00Z"}
    return pod_view({**pod, "spec": {**pod["spec"], **spec}, "status": status}, JOB)


def trainer(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "trainer", "restartCount": 0, **fields}]


def waiting(reason: str, message: str | None = None) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, **({"message": message} if message else {})}}}


# --- Containers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ({"containerStatuses": trainer(**waiting("ContainerCreating"))}, None, ""),
        ({"containerStatuses": trainer(**waiting("ImagePullBackOff", "Back-off"))}, "ImagePullBackOff", "Back-off"),
        (
            {"containerStatuses": trainer(**waiting("CreateContainerConfigError", 'secret "s" not found'))},
            "CreateContainerConfigError",
            'secret "s" not found',
        ),
        (
            {
                "initContainerStatuses": [{"name": "fetch", **waiting("ErrImagePull", "no such image")}],
                "containerStatuses": trainer(**waiting("PodInitializing")),
            },
            "ErrImagePull",
            "init container fetch: no such image",
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "fetch", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
                ],
                "phase": "Failed",
            },
            contract.REASON_INIT_FAILED,
            "init container fetch ended with exit code 3",
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "fetch",
                        **waiting("CrashLoopBackOff", "back-off 40s"),
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ]
            },
            contract.REASON_INIT_FAILED,
            "init container fetch was killed by SIGKILL (OOMKilled)",
        ),
        ({"initContainerStatuses": [{"name": "fetch", **waiting("PodInitializing")}]}, None, ""),
        (
            {
                "containerStatuses": trainer(
                    **waiting("CrashLoopBackOff", "back-off 20s"),
                    lastState={"terminated": {"exitCode": 127, "reason": "Error"}},
                )
            },
            "CrashLoopBackOff",
            "ended with exit code 127",
        ),
    ],
)
def test_why_a_pod_does_not_come_up(status: dict[str, Any], reason: str | None, words: str) -> None:
    pod = view_of({"phase": "Pending", **status})
    assert (pod.reason, pod.message or "") == (reason, words)


def test_a_container_that_runs_again_is_no_failed_pod() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2030-01-01T00:00:09Z"}}
    pod = view_of(
        {"phase": "Running", "containerStatuses": trainer(state={"running": {}}, lastState=last, restartCount=1)}
    )
    assert (pod.phase, pod.restarts, pod.last_reason) == (PodPhase.RUNNING, 1, "OOMKilled")
    assert (pod.exit_code, pod.reason, pod.finished_at) == (None, None, None)


@pytest.mark.parametrize(
    ("exit_code", "phase", "of_pod"),
    [
        (137, PodPhase.PENDING, "Running"),
        (1, PodPhase.PENDING, "Running"),
        (80, PodPhase.FAILED, "Running"),
        (0, PodPhase.SUCCEEDED, "Running"),
        (137, PodPhase.FAILED, "Failed"),
    ],
)
def test_between_its_end_and_its_next_start_the_rules_say_what_comes(
    exit_code: int, phase: PodPhase, of_pod: str
) -> None:
    ended = {"terminated": {"exitCode": exit_code, "reason": "OOMKilled" if exit_code == 137 else "Error"}}
    containers = [{"name": "trainer", "restartPolicy": "Never", "restartPolicyRules": RULES}, {"name": "sidecar"}]
    pod = view_of({"phase": of_pod, "containerStatuses": trainer(state=ended)}, containers=containers)
    assert pod.phase is phase
    assert pod.last_reason == (
        "OOMKilled" if exit_code == 137 and of_pod == "Running" else "Error" if phase is PodPhase.PENDING else None
    )


def test_without_rules_an_end_is_an_end() -> None:
    pod = view_of(
        {"phase": "Running", "containerStatuses": trainer(state={"terminated": {"exitCode": 137}})},
        containers=[{"name": "trainer"}, {"name": "sidecar"}],
    )
    assert pod.phase is PodPhase.FAILED


@pytest.mark.parametrize(("restarts", "crashing"), [(2, False), (3, True)])
def test_a_crash_loop_is_given_up_after_three_restarts(restarts: int, crashing: bool) -> None:
    last = {"terminated": {"exitCode": 127, "reason": "Error"}}
    pod = view_of(
        {
            "phase": "Running",
            "containerStatuses": trainer(**waiting("CrashLoopBackOff"), lastState=last, restartCount=restarts),
        }
    )
    assert (pod.phase, pod.crashing, pod.exit_code) == (PodPhase.PENDING, crashing, 127)


def test_when_it_was_created_and_got_its_node() -> None:
    pod = view_of(
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2030-01-01T00:00:05Z"}],
        }
    )
    assert (pod.created_at, pod.scheduled_at) == (EPOCH, EPOCH + timedelta(seconds=5))


# --- Events and nodes ------------------------------------------------------------------------------------------------


def event(reason: str, message: str, at: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": at}


def test_the_newest_telling_warning_is_taken() -> None:
    pod = view_of({"phase": "Pending"})
    events = [
        event(
            "FailedMount",
            'MountVolume.SetUp failed for volume "data": configmap "old" not found',
            "2030-01-01T00:00:01Z",
        ),
        event(
            "FailedMount",
            'MountVolume.SetUp failed for volume "data": configmap "data" not found',
            "2030-01-01T00:00:02Z",
        ),
        event(
            "FailedMount",
            "Unable to attach or mount volumes: timed out waiting for the condition",
            "2030-01-01T00:02:00Z",
        ),
        event("FailedScheduling", "0/3 nodes", "2030-01-01T00:03:00Z"),
    ]
    told = with_warnings(pod, events)
    assert (
        (told.reason, told.from_event) == ("FailedMount", True)
        and told.message is not None
        and 'configmap "data" not found' in told.message
    )
    assert with_warnings(pod, events[3:]) == pod


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"unschedulable": True}, "cordoned"),
        (
            {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
            "tainted: node.kubernetes.io/unreachable",
        ),
        (
            {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
            "tainted: ToBeDeletedByClusterAutoscaler",
        ),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, None),
        ({}, None),
    ],
)
def test_a_node_that_is_taken_away(spec: dict[str, Any], why: str | None) -> None:
    pod = PodView(slot=0, name="digits-0", uid="a", phase=PodPhase.RUNNING, deleting=True, node="n1")
    seen = on_node(pod, {"metadata": {"name": "n1"}, "spec": spec})
    assert (seen.disrupted, seen.disruption) == (why is not None, f"its node n1 is {why}" if why else None)


@pytest.mark.parametrize(
    ("exit_code", "reason", "disrupted"),
    [(None, None, True), (137, None, True), (143, None, True), (1, None, False), (137, "OOMKilled", False)],
)
def test_what_ended_by_itself_is_no_preemption_though_its_node_goes(
    exit_code: int | None, reason: str | None, disrupted: bool
) -> None:
    pod = PodView(
        slot=0, name="digits-0", uid="a", phase=PodPhase.FAILED, exit_code=exit_code, reason=reason, node="n1"
    )
    assert on_node(pod, {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}).disrupted == disrupted


# --- The whole way ---------------------------------------------------------------------------------------------------


async def stuck(sim: Simulation) -> None:
    """A job whose pods got a node and do not start."""
    sim.world.pace.start = (1e6, 1e6)
    sim.world.capacity = 4
    sim.cluster.create_job(manifest())
    await asyncio.sleep(5.0)


async def reason_within_30_s(sim: Simulation, reason: str) -> str:
    await sim.until(lambda: sim.job().status.reason == reason, reason, within_s=30.0)
    return next(condition.message for condition in sim.job().status.conditions if condition.reason == reason)


def test_a_mount_failure_is_found_in_the_events() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            await stuck(sim)
            for name in ("digits-0", "digits-1"):
                sim.cluster.warn_pod(
                    NAMESPACE,
                    name,
                    "FailedMount",
                    'MountVolume.SetUp failed for volume "data": configmap "data" not found',
                )
            message = await reason_within_30_s(sim, contract.REASON_VOLUME_MOUNT)
            assert ': FailedMount: MountVolume.SetUp failed for volume "data": configmap "data" not found' in message
            await asyncio.sleep(30.0)
            sim.calls.clear()
            await asyncio.sleep(3600.0)
            assert sim.writes == []
            looks = sum(call.verb == "list_pod_events" for call, moment in sim.calls if moment is Moment.BEFORE)
            assert 60 <= looks <= 240

    run_virtual(main())


def test_events_that_may_not_be_read_are_done_without() -> None:
    async def main() -> None:
        async with Simulation() as sim:

            async def forbidden(call: Call, moment: Moment) -> None:
                if call.verb in ("list_pod_events", "get_node"):
                    raise Rejected("events is forbidden")

            sim.on_call = forbidden
            await stuck(sim)
            await asyncio.sleep(120.0)
            assert sim.job().status.phase == "Starting"

    run_virtual(main())


def test_a_quota_becomes_a_condition_and_is_over_when_it_is_lifted() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            full = True

            async def quota(call: Call, moment: Moment) -> None:
                if full and call.verb == "create_pod" and call.name != "digits-0" and moment is Moment.BEFORE:
                    raise Rejected(
                        'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1'
                    )

            sim.on_call = quota
            sim.cluster.create_job(manifest(workers=3))
            message = await reason_within_30_s(sim, contract.REASON_QUOTA)
            assert "exceeded quota: team" in message
            await asyncio.sleep(60.0)
            sim.calls.clear()
            await asyncio.sleep(3600.0)
            assert {call.verb for call in sim.writes} == {"create_pod"}, "tried again, and nothing is written"
            assert len(sim.writes) <= 2 * 3600 / 15 + 2
            assert [(e["reason"], e["count"]) for e in sim.cluster.events() if e["type"] == "Warning"] == [
                ("FailedCreate", 1)
            ]
            sim.kill_operator()
            sim.start_operator()
            said = sim.job().status.condition("ResourcesCreated")
            await asyncio.sleep(0.5)
            assert sim.job().status.condition("ResourcesCreated") == said, (
                "a new leader says the same before it has tried"
            )
            full = False
            job = await sim.until_finished()
            assert job.status.holds("Complete")

    run_virtual(main())


def test_refused_spare_pods_do_not_slow_down_what_runs() -> None:
    async def main() -> None:
        async with Simulation() as sim:

            async def quota(call: Call, moment: Moment) -> None:
                if call.verb == "create_pod" and call.name not in ("digits-0", "digits-1") and moment is Moment.BEFORE:
                    raise Rejected("exceeded quota: team")

            sim.on_call = quota
            sim.world.pace.report = 1000.0
            sim.cluster.create_job(manifest())
            await sim.until_training()
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 3})
            await asyncio.sleep(600.0)
            assert sim.world.fail_rank(sim.agent(1))
            await sim.until(lambda: sim.job().status.failures.counted == 1, "the failure is seen", within_s=2.0)

    run_virtual(main())


def test_nodes_of_lost_members_are_looked_at() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            for number in range(4):
                sim.cluster.add_node(f"node-{number}", {"unschedulable": True})
            sim.cluster.create_job(manifest())
            await sim.until_training()
            assert not [call for call, _ in sim.calls if call.verb == "get_node"]
            sim.world.evictions += 1
            sim.cluster.remove_pod(NAMESPACE, sim.agent(1).pod_name)
            await sim.until_training(2)
            books, failure = sim.job().status.failures, sim.job().status.last_failure
            assert (books.counted, books.preemptions) == (0, 1)
            assert failure is not None and failure.message.endswith("is cordoned)")

    run_virtual(main())


@pytest.mark.parametrize(
    ("reason", "words", "preempted"),
    [
        ("Preempted", "Preempted by pod 8a on node node-1", True),
        ("TaintManagerEviction", "Marking for deletion Pod team/digits-1", True),
        ("TaintManagerEviction", "Cancelling deletion of Pod team/digits-1", False),
        ("Killing", "Stopping container trainer", False),
        (None, "", False),
    ],
)
def test_why_a_pod_is_gone_that_nobody_saw_go_is_asked_of_its_events(
    reason: str | None, words: str, preempted: bool
) -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest())
            sim.world.training("digits").length = 10**6
            await sim.until_training()
            await asyncio.sleep(5.0)
            sim.kill_operator()
            gone = sim.agent(1)
            if reason is not None:
                sim.cluster.warn_pod(NAMESPACE, gone.pod_name, reason, words, "Normal")
            sim.world.evictions += 1
            sim.world.lose_pod(gone)
            sim.calls.clear()
            sim.start_operator()
            await sim.until_training(2)
            books, failure = sim.job().status.failures, sim.job().status.last_failure
            assert (books.counted, books.preemptions) == ((0, 1) if preempted else (1, 0))
            assert failure is not None and failure.message == f"{gone.pod_name} is gone" + (
                f" ({reason}: {words})" if preempted else ""
            )
            assert (
                1 <= sum(call.verb == "list_pod_events" for call, moment in sim.calls if moment is Moment.BEFORE) <= 2
            )

    run_virtual(main())


def test_the_events_of_an_earlier_jobs_pod_of_that_name_say_nothing() -> None:
    started = EPOCH
    old = {
        "reason": "Preempted",
        "message": "Preempted by pod 8a",
        "lastTimestamp": (started - timedelta(seconds=1)).isoformat(),
    }
    new = {**old, "lastTimestamp": None, "eventTime": (started + timedelta(seconds=1)).isoformat()}
    assert disruption_in([old], started) is None
    assert (
        disruption_in([old, new, {"reason": "Evicted", "message": "no time"}], started)
        == "Preempted: Preempted by pod 8a"
    )


def test_a_pod_that_went_over_a_limit_of_its_own_was_taken_away_by_nobody() -> None:
    evicted = {"reason": "Evicted", "lastTimestamp": EPOCH.isoformat()}
    own = {**evicted, "message": 'Usage of EmptyDir volume "trainjob-work" exceeds the limit "30Mi". '}
    nodes = {**evicted, "message": "The node was low on resource: memory."}
    assert disruption_in([own], EPOCH) is None
    assert disruption_in([nodes], EPOCH) == "Evicted: The node was low on resource: memory."


# --- Objects that cannot be read -------------------------------------------------------------------------------------


def test_an_unreadable_job_is_told_so_and_nothing_else_is_touched() -> None:
    async def main() -> None:
        async with Simulation() as sim:
            sim.cluster.create_job(manifest())
            await sim.until_training()
            before = sim.cluster.job(NAMESPACE, "digits")
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": "many"})
            await asyncio.sleep(5.0)
            after = sim.cluster.job(NAMESPACE, "digits")
            told = next(c for c in after["status"]["conditions"] if c["type"] == "ResourcesCreated")
            assert (told["status"], told["reason"]) == ("False", contract.REASON_INVALID_SPEC)
            assert "spec.workers" in told["message"] and "kubectl edit" in told["message"]
            others = [c for c in after["status"]["conditions"] if c["type"] != "ResourcesCreated"]
            assert others == [c for c in before["status"]["conditions"] if c["type"] != "ResourcesCreated"]
            assert {k: v for k, v in after["status"].items() if k != "conditions"} == {
                k: v for k, v in before["status"].items() if k != "conditions"
            }
            sim.calls.clear()
            await asyncio.sleep(600.0)
            assert sim.writes == [] and len(sim.cluster.pods()) == 2
            sim.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 2})
            job = await sim.until_finished()
            assert job.status.holds("Complete")

    run_virtual(main())


@pytest.mark.parametrize("status", [{}, {"conditions": "none"}, {"conditions": [7, {"type": "Strange"}]}, {"phase": 3}])
def test_no_stored_status_stops_it(status: dict[str, Any]) -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        stored = cluster.create_job(manifest(workers="many"))
        await cluster.patch_job_status(NAMESPACE, "digits", stored["metadata"]["resourceVersion"], status)
        for _ in range(2):
            with pytest.raises(UnreadableJob) as unreadable:
                await observe(cluster, (NAMESPACE, "digits"), lambda key: {}, None)
            await report_unreadable(cluster, unreadable.value, EPOCH)
        told = cluster.job(NAMESPACE, "digits")["status"]["conditions"]
        assert [c["reason"] for c in told if c["type"] == "ResourcesCreated"] == [contract.REASON_INVALID_SPEC]

    run_virtual(main())


def test_a_finished_job_that_cannot_be_read_is_left_alone() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        stored = cluster.create_job(manifest(workers="many"))
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        await cluster.patch_job_status(NAMESPACE, "digits", stored["metadata"]["resourceVersion"], done)
        with pytest.raises(UnreadableJob) as unreadable:
            await observe(cluster, (NAMESPACE, "digits"), lambda key: {}, None)
        await report_unreadable(cluster, unreadable.value, EPOCH)
        assert cluster.job(NAMESPACE, "digits")["status"] == done

    run_virtual(main())


def test_without_a_clock_no_events_are_read() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        calls = Recorder()
        cluster.faults = calls
        cluster.create_job(manifest())
        await observe(cluster, (NAMESPACE, "digits"), lambda key: {}, None)
        assert "list_pod_events" not in calls.verbs

    run_virtual(main())


@pytest.mark.parametrize(
    ("phase", "beside", "lingers"),
    [
        ("Running", {"running": {}}, True),
        ("Running", {"waiting": {}}, True),
        ("Running", {"terminated": {"exitCode": 0}}, False),
        ("Failed", {"running": {}}, False),
    ],
)
def test_a_pod_lingers_while_containers_beside_its_ended_trainer_run(
    phase: str, beside: dict[str, Any], lingers: bool
) -> None:
    ended = trainer(state={"terminated": {"exitCode": 0}})
    view = view_of({"phase": phase, "containerStatuses": [{"name": "sidecar", "state": beside}, *ended]})
    assert (view.phase, view.lingers) == (PodPhase.SUCCEEDED, lingers)
    assert not view_of({"phase": phase, "containerStatuses": ended}).lingers
