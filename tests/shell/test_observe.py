"""API objects become observations: the trainer container counts, foreign things are seen, nothing makes it raise."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clusters import NAMESPACE, Recorder, manifest, plain_pod, stored_job
from support.virtual_time import EPOCH, VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_api.last_word import LastWord, to_text
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import Conflict, JobKey, NotFound, Rejected, Unavailable
from trainjob_operator.core.model import AgentView, PodPhase, PodView
from trainjob_operator.core.phrases import how_pod_ended
from trainjob_operator.loop.observe import complete, observe, read, served_now
from trainjob_operator.manifests import UnreadableJob, pod_view, read_job, serves
from trainjob_operator.memory import Call, MemoryCluster, Moment
from trainjob_operator.pod_events import node_in

JOB = TrainJob.model_validate({**manifest(), "metadata": {**manifest()["metadata"], "uid": "job-uid"}})
OWNER = {"metadata": {"uid": "job-uid"}}


def view_of(status: dict[str, Any] | None = None, **changes: Any) -> PodView:
    pod = plain_pod("digits-3", owner=OWNER, slot=3)
    pod["metadata"] |= {"uid": "pod-uid", "namespace": NAMESPACE} | changes.pop("metadata", {})
    pod["spec"] |= changes.pop("spec", {})
    return pod_view({**pod, "status": status or {}, **changes}, JOB)


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


# --- A pod ------------------------------------------------------------------------------------------------------------


def test_a_new_pod_is_pending_and_not_scheduled() -> None:
    pod = view_of({"phase": "Pending"})
    assert (pod.slot, pod.name, pod.uid, pod.owned, pod.deleting) == (3, "digits-3", "pod-uid", True, False)
    assert (pod.phase, pod.scheduled, pod.ready) == (PodPhase.PENDING, False, False)


def test_the_schedulers_words() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    pod = view_of({"phase": "Pending", "conditions": [condition]})
    assert (pod.scheduled, pod.reason, pod.message) == (False, "Unschedulable", "0/3 nodes are available")


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({"phase": "Running", "containerStatuses": [container("trainer", running={})]}, PodPhase.RUNNING),
        (
            {"phase": "Running", "containerStatuses": [container("trainer", waiting={"reason": "CrashLoopBackOff"})]},
            PodPhase.PENDING,
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container("trainer", terminated={"exitCode": 0}),
                    container("sidecar", running={}),
                ],
            },
            PodPhase.SUCCEEDED,
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container("trainer", terminated={"exitCode": 3}),
                    container("sidecar", running={}),
                ],
            },
            PodPhase.FAILED,
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container("sidecar", terminated={"exitCode": 3}),
                    container("trainer", running={}),
                ],
            },
            PodPhase.RUNNING,
        ),
        ({"phase": "Failed", "reason": "Evicted"}, PodPhase.FAILED),
        ({"phase": "Failed", "containerStatuses": [container("trainer", running={})]}, PodPhase.FAILED),
        ({"phase": "Running"}, PodPhase.RUNNING),
        ({"phase": "Succeeded"}, PodPhase.SUCCEEDED),
        ({}, PodPhase.PENDING),
    ],
)
def test_the_trainer_container_counts(status: dict[str, Any], phase: PodPhase) -> None:
    containers = [{"name": "sidecar"}, {"name": "trainer"}]
    assert view_of(status, spec={"containers": containers}).phase is phase


def test_without_a_trainer_the_first_container_counts() -> None:
    status = {
        "phase": "Running",
        "containerStatuses": [container("second", running={}), container("first", terminated={"exitCode": 1})],
    }
    assert view_of(status, spec={"containers": [{"name": "first"}, {"name": "second"}]}).phase is PodPhase.FAILED


def test_how_a_container_ended() -> None:
    ended = {
        "exitCode": 137,
        "signal": 9,
        "reason": "OOMKilled",
        "finishedAt": "2030-01-01T00:00:05Z",
        "message": "x" * 5000,
    }
    pod = view_of({"phase": "Failed", "containerStatuses": [container("trainer", terminated=ended)]})
    assert (pod.exit_code, pod.signal, pod.reason) == (137, 9, "OOMKilled")
    assert pod.finished_at == datetime(2030, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert pod.message is not None and len(pod.message) == 1024


def test_a_containers_words_cannot_move_a_terminal() -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": "\x1b[2Jall is well\x07\nreally"}
    pod = view_of({"phase": "Failed", "containerStatuses": [container("trainer", terminated=ended)]})
    assert pod.message is not None and "all is well" in pod.message
    assert not any(ord(c) < 32 and c not in "\n\t" for c in pod.message)


def test_disruption_node_and_deletion() -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "DisruptionTarget", "status": "True"}, {"type": "Ready", "status": "False"}],
    }
    pod = view_of(status, spec={"nodeName": "node-7"}, metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})
    assert (pod.disrupted, pod.node, pod.deleting, pod.ready, pod.scheduled) == (True, "node-7", True, False, True)


@pytest.mark.parametrize(
    "owners",
    [[], [{"uid": "another-uid", "controller": True}], [{"uid": "job-uid"}]],
    ids=["none", "another job's", "not controlling"],
)
def test_a_foreign_pod_is_not_ours(owners: list[dict[str, Any]]) -> None:
    assert view_of(metadata={"ownerReferences": owners}).owned is False


@pytest.mark.parametrize(
    ("labels", "name", "slot"),
    [({}, "digits-12", 12), ({"trainjob.dev/slot": "x"}, "digits-x", -1), ({"trainjob.dev/slot": "²"}, "digits-4", 4)],
)
def test_the_slot_of_a_foreign_pod(labels: dict[str, str], name: str, slot: int) -> None:
    assert view_of(metadata={"labels": labels, "name": name}).slot == slot


def standing(**ready: str) -> dict[str, Any]:
    """A running pod with these conditions."""
    conditions = [
        {"type": name, "status": value, "lastTransitionTime": "2030-01-01T00:00:05Z"} for name, value in ready.items()
    ]
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [{**container("trainer", running={}), "ready": ready["ContainersReady"] == "True"}],
    }


@pytest.mark.parametrize(
    ("status", "spec", "doubt"),
    [
        (standing(ContainersReady="True", Ready="True"), {}, None),
        (
            standing(ContainersReady="True", Ready="False"),
            {},
            "its node node-7 has fallen silent: Kubernetes has marked the pod as not Ready",
        ),
        (standing(ContainersReady="True", Ready="Unknown"), {}, "Kubernetes has lost its node node-7"),
        (
            {**standing(ContainersReady="True", Ready="True"), "reason": "NodeLost"},
            {},
            "Kubernetes has lost its node node-7",
        ),
        (standing(ContainersReady="True", Ready="False"), {"readinessGates": [{"conditionType": "mesh"}]}, None),
        (standing(ContainersReady="False", Ready="False"), {}, "its readiness probe fails"),
        (
            {
                **standing(ContainersReady="False", Ready="False"),
                "containerStatuses": [{**container("trainer", running={}), "ready": True}],
            },
            {},
            None,
        ),
        ({"phase": "Running", "containerStatuses": [container("trainer", running={})]}, {}, None),
        (
            {
                **standing(ContainersReady="True", Ready="False"),
                "containerStatuses": [container("trainer", terminated={"exitCode": 1})],
            },
            {},
            None,
        ),
    ],
    ids=["well", "marked", "unknown", "node-lost", "gate", "probe", "a sidecar's probe", "no conditions", "ended"],
)
def test_what_kubernetes_doubts_of_a_pod(status: dict[str, Any], spec: dict[str, Any], doubt: str | None) -> None:
    pod = view_of(status, spec={"nodeName": "node-7", "containers": [{"name": "trainer"}, {"name": "sidecar"}], **spec})
    assert pod.doubt == doubt
    assert (pod.doubt_since is not None) == (doubt == "its readiness probe fails")


def test_a_failed_init_container_is_named() -> None:
    ended = {"exitCode": 3, "message": "no such bucket"}
    status = {
        "phase": "Failed",
        "initContainerStatuses": [
            container("trainjob-runtime", terminated={"exitCode": 0}),
            container("fetch", terminated=ended),
        ],
    }
    pod = view_of(status)
    assert (pod.phase, pod.failed_init, pod.reason) == (PodPhase.FAILED, "fetch", "InitContainerFailed")
    assert pod.message == "init container fetch ended with exit code 3: no such bucket"


_TEXT = st.one_of(st.none(), st.text(max_size=5))
_STATE = st.fixed_dictionaries(
    {},
    optional={
        "running": st.just({}),
        "waiting": st.fixed_dictionaries({"reason": _TEXT}),
        "terminated": st.fixed_dictionaries({"exitCode": st.integers(), "finishedAt": _TEXT}),
    },
)
_STATUS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        "conditions": st.one_of(
            st.none(),
            st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["Ready", "PodScheduled", "DisruptionTarget"])}, optional={"status": _TEXT}
                )
            ),
        ),
        "containerStatuses": st.one_of(
            st.none(),
            st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["trainer", "sidecar"])}, optional={"state": _STATE})
            ),
        ),
    },
)


@given(_STATUS)
def test_no_status_makes_it_raise(status: dict[str, Any]) -> None:
    assert isinstance(view_of(status), PodView)


# --- The whole look ---------------------------------------------------------------------------------------------------


def agent(uid: str, slot: int = 0) -> AgentView:
    return AgentView(slot=slot, pod_uid=uid, boot=1, heard_at=EPOCH, address="10.0.0.1:7000")


def silent(key: JobKey) -> dict[str, AgentView]:
    return {}


def test_everything_in_one_look() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        owner = cluster.job(NAMESPACE, "digits")
        mine = await cluster.create_pod(NAMESPACE, plain_pod("digits-0", owner=owner))
        other = await cluster.create_pod(NAMESPACE, plain_pod("digits-5", slot=5))
        await cluster.create_service(NAMESPACE, {"metadata": {"name": "digits"}})
        uids = [mine["metadata"]["uid"], other["metadata"]["uid"], "a-pod-that-is-gone"]
        seen = await observe(cluster, job.key, lambda key: {uid: agent(uid) for uid in uids}, EPOCH)
        assert [(pod.slot, pod.owned) for pod in seen.pods] == [(0, True), (5, False)]
        assert {slot: view.pod_uid for slot, view in seen.agents.items()} == {0: uids[0]}, (
            "words only of listed pods that are ours"
        )
        assert seen.service is not None and not seen.service.owned
        assert seen.listening_since == EPOCH

    run_virtual(main())


def test_an_agent_speaks_for_the_slot_of_its_pod() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        pod = await cluster.create_pod(NAMESPACE, plain_pod("digits-0", owner=cluster.job(NAMESPACE, "digits")))
        uid = pod["metadata"]["uid"]
        seen = await observe(cluster, job.key, lambda key: {uid: agent(uid, slot=4)}, None)
        assert {slot: view.slot for slot, view in seen.agents.items()} == {0: 0}

    run_virtual(main())


def test_a_pod_that_holds_a_listed_name_without_our_label_is_seen() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, {"slots": "0-2"})
        cluster.add_pod({"metadata": {"name": "digits-1", "namespace": NAMESPACE}, "spec": {"containers": []}})
        seen = await observe(cluster, job.key, silent, None, taken={"digits-1"})
        assert [(pod.slot, pod.owned) for pod in seen.pods] == [(1, False)]
        calls = Recorder()
        cluster.faults = calls
        assert (await observe(cluster, job.key, silent, None)).pods == ()
        assert "get_pod" not in calls.verbs, "a pod that is not made yet is not asked for"

    run_virtual(main())


def test_a_job_that_is_gone_and_one_that_cannot_be_read() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        with pytest.raises(NotFound):
            await observe(cluster, (NAMESPACE, "digits"), silent, None)
        cluster.create_job(manifest(workers="many"))
        with pytest.raises(UnreadableJob, match=r"team/digits: spec\.workers: .* kubectl edit"):
            await observe(cluster, (NAMESPACE, "digits"), silent, None)

    run_virtual(main())


@pytest.mark.parametrize("verb", ["get_job", "list_pods", "get_service"])
def test_a_failing_read_fails_the_look(verb: str) -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)

        async def fault(call: Call, moment: Moment) -> None:
            if call.verb == verb:
                raise Unavailable("503")

        cluster.faults = fault
        with pytest.raises(Unavailable):
            await observe(cluster, job.key, silent, None)

    run_virtual(main())


def test_a_job_that_changes_while_its_pods_are_listed_is_looked_at_again() -> None:
    """Else a leader could take the pods that another one has just created for left-overs."""

    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)

        async def edit(call: Call, moment: Moment) -> None:
            if call.verb == "list_pods" and moment is Moment.AFTER:
                cluster.update_job_spec(NAMESPACE, "digits", {"workers": 5})

        cluster.faults = edit
        with pytest.raises(Conflict):
            await observe(cluster, job.key, silent, None)

    run_virtual(main())


# --- Nodes of pods that are silent ------------------------------------------------------------------------------------


def on_a_node(cluster: MemoryCluster, name: str = "digits-0", node: str = "node-1") -> str:
    """A worker that runs; its UID."""
    manifest_ = plain_pod(name, owner=cluster.job(NAMESPACE, "digits"))
    manifest_["metadata"]["namespace"] = NAMESPACE
    pod = cluster.add_pod(manifest_)
    cluster.bind_pod(NAMESPACE, name, node)
    cluster.set_pod_status(NAMESPACE, name, standing(ContainersReady="True", Ready="True"))
    return str(pod["metadata"]["uid"])


def test_nodes_are_read_of_pods_that_are_silent_and_of_no_others() -> None:
    async def main() -> None:
        clock = VirtualClock()
        cluster = MemoryCluster(clock)
        job = stored_job(cluster)
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, {"slots": "0"})
        uid = on_a_node(cluster)
        reads: list[str] = []

        async def note(call: Call, moment: Moment) -> None:
            if call.verb == "get_node" and moment is Moment.BEFORE:
                reads.append(call.name)

        cluster.faults = note

        async def look(after_s: float) -> PodView:
            heard = {uid: agent(uid)}
            seen = await observe(cluster, job.key, lambda key: heard, EPOCH, EPOCH + timedelta(seconds=after_s))
            return seen.pods[0]

        assert (await look(29.9)).doubt is None and reads == []
        assert (await look(30)).doubt == "its node node-1 is gone" and reads == ["node-1"]
        cluster.add_node("node-1")
        assert (await look(30)).doubt is None
        cluster.set_node_ready("node-1", "Unknown", "NodeStatusUnknown")
        assert (await look(30)).doubt == "its node node-1 is NotReady (NodeStatusUnknown)"
        cluster.set_pod_status(NAMESPACE, "digits-0", standing(ContainersReady="True", Ready="False"))
        cluster.set_node_ready("node-1", "True", "KubeletReady")
        assert (await look(30)).doubt is None, "the node is back: its mark on the pod is older"

        async def forbidden(call: Call, moment: Moment) -> None:
            if call.verb == "get_node":
                raise Rejected("nodes is forbidden")

        cluster.faults = forbidden
        assert "fallen silent" in str((await look(30)).doubt), "where nodes may not be read the pod's mark stands"

    run_virtual(main())


def test_an_evicted_pod_says_what_the_kubelet_evicted_it_for_not_how_its_container_then_ended() -> None:
    ended = {"exitCode": 137, "reason": "Error", "message": "the last line of a log"}
    words = {"reason": "Evicted", "message": 'Usage of EmptyDir volume "trainjob-work" exceeds the limit "30Mi". '}
    pod = view_of({"phase": "Failed", **words, "containerStatuses": [container("trainer", terminated=ended)]})
    assert (pod.phase, pod.reason, pod.exit_code) == (PodPhase.FAILED, "Evicted", 137)
    assert "spec.checkpoint.staging.sizeLimit" in how_pod_ended(pod)


def test_a_pod_whose_deadline_of_the_template_is_over_says_so() -> None:
    ended = {"exitCode": 82, "reason": "Error"}
    words = {"reason": "DeadlineExceeded", "message": "Pod was active on the node longer than the specified deadline"}
    status = {"phase": "Failed", **words, "containerStatuses": [container("trainer", terminated=ended)]}
    pod = view_of(status)
    assert pod.reason == "DeadlineExceeded"
    assert (
        how_pod_ended(pod) == "was ended by the kubelet: the activeDeadlineSeconds of the job's pod template are over"
    )


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        ({}, False),
        ({"labels": {"trainjob.dev/job": "digits", "app.kubernetes.io/managed-by": "trainjob"}}, True),
        ({"labels": {"trainjob.dev/job": "other", "app.kubernetes.io/managed-by": "trainjob"}}, False),
        (
            {
                "labels": {"trainjob.dev/job": "digits", "app.kubernetes.io/managed-by": "trainjob"},
                "ownerReferences": [{"uid": "somebody", "controller": True}],
            },
            False,
        ),
    ],
    ids=["stranger", "orphan", "of another job", "of another owner"],
)
def test_a_service_that_an_orphaning_delete_left_behind_serves_the_next_job_of_the_name(
    metadata: dict[str, Any], ours: bool
) -> None:
    selector = {"trainjob.dev/job": "digits"}
    service = {"metadata": {"name": "digits", **metadata}, "spec": {"clusterIP": "None", "selector": selector}}
    assert serves(service, "digits", "job-uid") is ours
    spec = {"clusterIP": "10.0.0.1", "selector": selector}
    assert not serves({"metadata": service["metadata"], "spec": spec}, "digits", "job-uid")


# --- Members whose pods are gone --------------------------------------------------------------------------------------


def _event(reason: str, message: str, at_s: float, **fields: Any) -> dict[str, Any]:
    moment = (EPOCH + timedelta(seconds=at_s)).isoformat()
    return {"reason": reason, "message": message, "lastTimestamp": moment, **fields}


ASSIGNED = _event("Scheduled", "Successfully assigned team/digits-1 to node-1", -7200)
STOPPED = _event("Killing", "Stopping container trainer", 60, source={"component": "kubelet", "host": "node-2"})


@pytest.mark.parametrize(
    ("events", "node"),
    [
        ([], None),
        ([ASSIGNED], "node-1"),
        ([STOPPED, ASSIGNED], "node-2"),
        ([_event("Scheduled", "0/3 nodes are available", 0)], None),
        ([{"reason": "Killing", "source": {"component": "kubelet", "host": "node-9"}}], None),
    ],
)
def test_events_tell_the_node_of_a_pod_that_is_gone(events: list[dict[str, Any]], node: str | None) -> None:
    assert node_in(events) == node


def cordoned(cluster: MemoryCluster) -> None:
    cluster.remove_node("node-2")
    cluster.add_node("node-2", {"unschedulable": True})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (cordoned, "its node node-2 is cordoned"),
        (
            lambda cluster: cluster.set_node_ready("node-2", "Unknown", "NodeStatusUnknown"),
            "its node node-2 is NotReady",
        ),
        (lambda cluster: cluster.remove_node("node-2"), "its node node-2 is gone"),
        (lambda cluster: None, None),
    ],
)
def test_a_member_that_was_evicted_while_nobody_looked_was_taken_away(change: Any, told: str | None) -> None:
    """kubectl drain: the node is cordoned, and an API eviction leaves no event of its own."""

    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": "1", "workers": 1}
        status = {"slots": "1", "attempt": {**attempt, "worldSize": 1, "cause": "Started"}}
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, status)
        cluster.add_node("node-2")
        change(cluster)
        about = {"kind": "Pod", "name": "digits-1", "namespace": NAMESPACE}
        event = {**STOPPED, "metadata": {"name": "e1"}, "involvedObject": about, "type": "Normal"}
        await cluster.create_event(NAMESPACE, event)
        seen = await observe(cluster, job.key, silent, EPOCH, EPOCH + timedelta(seconds=90))
        assert seen.disruptions == ({1: told} if told else {})

    run_virtual(main())


@pytest.mark.parametrize("draining", [True, False])
def test_the_node_of_a_member_that_is_told_to_end_tells_whether_it_is_taken_away(draining: bool) -> None:
    """SIGTERM, and nobody has deleted its pod: a node that shuts down. A cordon alone takes nobody away."""

    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": "0", "workers": 1}
        status = {"slots": "0", "attempt": {**attempt, "worldSize": 1, "cause": "Started"}}
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, status)
        uid = on_a_node(cluster, node="node-2")
        cluster.add_node("node-2", {"unschedulable": True})
        heard = {uid: replace(agent(uid), draining=draining)}
        seen = await observe(cluster, job.key, lambda key: heard, EPOCH, EPOCH + timedelta(seconds=1))
        assert (seen.pods[0].disrupted, seen.pods[0].grace_s) == (draining, 30)

    run_virtual(main())


def test_what_a_member_said_before_its_pod_was_gone_is_seen() -> None:
    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": "0-1", "workers": 2}
        status = {"slots": "0-1", "attempt": {**attempt, "worldSize": 2, "cause": "Started"}}
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, status)
        uid = on_a_node(cluster)
        said = {
            uid: replace(agent(uid), attempt=1),
            "gone": replace(agent("gone"), slot=1, attempt=1),
            "older": replace(agent("older"), slot=1, attempt=0),
            "other": replace(agent("other"), slot=7, attempt=1),
        }
        seen = await observe(cluster, job.key, lambda key: said, EPOCH, EPOCH + timedelta(seconds=1))
        assert {slot: view.pod_uid for slot, view in seen.parted.items()} == {1: "gone"}
        assert {slot: view.pod_uid for slot, view in seen.agents.items()} == {0: uid}

    run_virtual(main())


def test_the_last_word_of_a_member_whose_pod_is_gone_is_seen() -> None:
    """Its rank broke, its agent ended, its pod was deleted: all before anyone looked."""

    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": "0-1", "workers": 2}
        status = {"slots": "0-1", "attempt": {**attempt, "worldSize": 2, "cause": "Started"}}
        job = read_job(await cluster.patch_job_status(*job.key, job.metadata.resource_version, status))
        on_a_node(cluster)
        line = to_text(LastWord(attempt=1, code=81, rank=1, kind=contract.END_EXCEPTION, error="ValueError", run=1))
        end = {"exitCode": 81, "finishedAt": EPOCH.isoformat(), "message": line}
        pod = plain_pod("digits-1", owner=cluster.job(*job.key), slot=1)
        pod["metadata"]["uid"] = "gone"
        pod["status"] = {"phase": "Failed", "containerStatuses": [container("trainer", terminated=end)]}
        sight, _ = await read(cluster, job, served_now(cluster, job))
        seen = await complete(cluster, replace(sight, went={1: pod_view(pod, job)}), silent, EPOCH)
        assert [rank["kind"] for rank in seen.parted[1].ranks] == [contract.END_EXCEPTION]

    run_virtual(main())


@pytest.mark.parametrize(
    ("change", "told"), [(cordoned, "its node node-2 is cordoned"), (lambda cluster: None, None)], ids=["drained", "-"]
)
def test_the_node_of_a_member_that_was_seen_to_go_tells_whether_it_was_taken_away(
    change: Any, told: str | None
) -> None:
    """A drain without evictions deletes pods; their events are not asked for."""

    async def main() -> None:
        cluster = MemoryCluster(VirtualClock())
        job = stored_job(cluster)
        attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": "1", "workers": 1}
        status = {"slots": "1", "attempt": {**attempt, "worldSize": 1, "cause": "Started"}}
        await cluster.patch_job_status(*job.key, job.metadata.resource_version, status)
        cluster.add_node("node-2")
        change(cluster)
        job = TrainJob.model_validate(cluster.job(*job.key))
        asked: list[str] = []

        async def note(call: Call, moment: Moment) -> None:
            asked.append(call.verb)

        cluster.faults = note
        went = {1: PodView(slot=1, name="digits-1", uid="u1", node="node-2", phase=PodPhase.RUNNING)}
        sight, _ = await read(cluster, job, served_now(cluster, job), went={"digits-1"})
        seen = await complete(cluster, replace(sight, went=went), silent, EPOCH, EPOCH + timedelta(seconds=90))
        assert seen.disruptions == ({1: told} if told else {})
        assert "list_pod_events" not in asked and "get_node" in asked

    run_virtual(main())
