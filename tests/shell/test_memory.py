"""The in-process cluster beyond the contract: the world's verbs, fault hooks, the watch of objects."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

from support.clusters import NAMESPACE, Recorder, manifest, plain_pod
from support.virtual_time import VirtualClock, run_virtual
from trainjob_operator.cluster import Conflict, NotFound, Rejected, Unavailable
from trainjob_operator.memory import ChangeType, MemoryCluster, Moment, ObjectChange


async def seen(cluster: MemoryCluster) -> list[ObjectChange]:
    """What a new watcher is shown without waiting."""
    found: list[ObjectChange] = []
    async with contextlib.aclosing(cluster.watch_objects()) as changes:  # type: ignore[type-var]
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(await asyncio.wait_for(anext(changes), 1.0))
    return found


class Follower:
    """Collects the changes of pods from now on."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.changes: list[ObjectChange] = []
        self._task = asyncio.ensure_future(self._follow(cluster))

    async def _follow(self, cluster: MemoryCluster) -> None:
        async for change in cluster.watch_objects():
            self.changes.append(change)

    async def told(self) -> list[tuple[str, int | None]]:
        """(type, grace) of the changes of pods so far."""
        await asyncio.sleep(0.1)
        return [
            (c.type.value, c.object["metadata"].get("deletionGracePeriodSeconds"))
            for c in self.changes
            if c.kind == "Pod"
        ]


def with_cluster(test: Any) -> None:
    async def main() -> None:
        await test(MemoryCluster(VirtualClock()))

    run_virtual(main())


# --- Deleting pods ----------------------------------------------------------------------------------------------------


def test_a_graceful_delete_is_two_steps() -> None:
    async def test(cluster: MemoryCluster) -> None:
        job = cluster.create_job(manifest())
        pod = await cluster.create_pod(NAMESPACE, plain_pod("digits-0", owner=job))
        cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        cluster.set_pod_status(NAMESPACE, "digits-0", {"phase": "Running"})
        follower = Follower(cluster)
        assert await follower.told() == [("ADDED", None)]
        await cluster.delete_pod(NAMESPACE, "digits-0", pod["metadata"]["uid"], 20)
        assert await follower.told() == [("ADDED", None), ("MODIFIED", 20)]
        cluster.finalize_pod_deletion(NAMESPACE, "digits-0", pod["metadata"]["uid"])
        assert await follower.told() == [("ADDED", None), ("MODIFIED", 20), ("DELETED", 20)]

    with_cluster(test)


def test_a_second_delete_only_shortens_the_grace() -> None:
    async def test(cluster: MemoryCluster) -> None:
        await cluster.create_pod(NAMESPACE, plain_pod("digits-0"))
        cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        for grace, kept in ((None, 30), (60, 30), (5, 5)):
            cluster.remove_pod(NAMESPACE, "digits-0", grace)
            assert (await cluster.get_pod(NAMESPACE, "digits-0"))["metadata"]["deletionGracePeriodSeconds"] == kept
        cluster.remove_pod(NAMESPACE, "digits-0", 0)
        with pytest.raises(NotFound):
            await cluster.get_pod(NAMESPACE, "digits-0")

    with_cluster(test)


@pytest.mark.parametrize("case", ["not bound", "ended", "grace 0"])
def test_pods_that_go_at_once(case: str) -> None:
    async def test(cluster: MemoryCluster) -> None:
        await cluster.create_pod(NAMESPACE, plain_pod("digits-0"))
        if case != "not bound":
            cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        if case == "ended":
            cluster.set_pod_status(NAMESPACE, "digits-0", {"phase": "Failed"})
        follower = Follower(cluster)
        assert await follower.told() == [("ADDED", None)]
        cluster.remove_pod(NAMESPACE, "digits-0", 0 if case == "grace 0" else None)
        assert await follower.told() == [("ADDED", None), ("MODIFIED", 0), ("DELETED", 0)]

    with_cluster(test)


def test_only_a_deleted_pod_can_be_finalized_and_only_by_its_uid() -> None:
    async def test(cluster: MemoryCluster) -> None:
        await cluster.create_pod(NAMESPACE, plain_pod("digits-0"))
        cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        with pytest.raises(Conflict):
            cluster.finalize_pod_deletion(NAMESPACE, "digits-0")
        cluster.remove_pod(NAMESPACE, "digits-0")
        with pytest.raises(Conflict):
            cluster.finalize_pod_deletion(NAMESPACE, "digits-0", "another-uid")
        cluster.finalize_pod_deletion(NAMESPACE, "digits-0")
        assert cluster.pods() == []

    with_cluster(test)


# --- Owners -----------------------------------------------------------------------------------------------------------


def test_running_children_of_a_deleted_job_get_their_grace() -> None:
    async def test(cluster: MemoryCluster) -> None:
        job = cluster.create_job(manifest())
        for slot in (0, 1):
            await cluster.create_pod(NAMESPACE, plain_pod(f"digits-{slot}", owner=job, slot=slot))
        cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        cluster.remove_job(NAMESPACE, "digits")
        assert [(pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]) for pod in cluster.pods()] == [
            ("digits-0", True)
        ]

    with_cluster(test)


def test_a_child_of_an_owner_that_is_gone_is_collected() -> None:
    async def test(cluster: MemoryCluster) -> None:
        job = cluster.create_job(manifest())
        cluster.remove_job(NAMESPACE, "digits")
        created = await cluster.create_pod(NAMESPACE, plain_pod("digits-0", owner=job))
        assert created["metadata"]["uid"]
        assert cluster.pods() == []

    with_cluster(test)


# --- Versions and copies ----------------------------------------------------------------------------------------------


def test_a_write_that_changes_nothing_makes_no_version_and_no_change() -> None:
    async def test(cluster: MemoryCluster) -> None:
        version = cluster.create_job(manifest())["metadata"]["resourceVersion"]
        patched = await cluster.patch_job_status(NAMESPACE, "digits", version, {"phase": "Running"})
        again = await cluster.patch_job_status(
            NAMESPACE, "digits", patched["metadata"]["resourceVersion"], {"phase": "Running"}
        )
        assert again == patched
        assert cluster.update_job_spec(NAMESPACE, "digits", {"workers": 2}) == patched

    with_cluster(test)


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1: "number as a name"}, object()])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    async def test(cluster: MemoryCluster) -> None:
        with pytest.raises(Rejected):
            cluster.create_job(manifest(extra=value))
        assert cluster.jobs() == []

    with_cluster(test)


def test_watchers_cannot_change_the_store_or_each_others_view() -> None:
    async def test(cluster: MemoryCluster) -> None:
        cluster.create_job(manifest())
        (first,) = await seen(cluster)
        first.object["spec"].clear()
        (second,) = await seen(cluster)
        assert second.object["spec"]["workers"] == 2
        assert cluster.job(NAMESPACE, "digits")["spec"]["workers"] == 2

    with_cluster(test)


def test_uids_differ_between_clusters() -> None:
    async def main() -> None:
        jobs = [MemoryCluster(VirtualClock()).create_job(manifest()) for _ in range(2)]
        assert jobs[0]["metadata"]["uid"] != jobs[1]["metadata"]["uid"], (
            "runs on storage are told apart by the job's UID"
        )

    run_virtual(main())


# --- Events and faults ------------------------------------------------------------------------------------------------


def test_an_event_said_again_is_counted() -> None:
    async def test(cluster: MemoryCluster) -> None:
        event = {"metadata": {"name": "digits.1"}, "reason": "Started", "message": "attempt 1", "type": "Normal"}
        await cluster.create_event(NAMESPACE, event)
        await asyncio.sleep(5.0)
        await cluster.create_event(NAMESPACE, event)
        (stored,) = cluster.events()
        assert stored["count"] == 2
        assert stored["firstTimestamp"] == "2030-01-01T00:00:00Z"
        assert stored["lastTimestamp"] == "2030-01-01T00:00:05Z"
        assert ChangeType.ADDED in {change.type for change in await seen(cluster) if change.kind == "Event"}

    with_cluster(test)


@pytest.mark.parametrize("moment", Moment)
def test_a_fault_before_leaves_undone_and_one_after_loses_the_reply(moment: Moment) -> None:
    async def test(cluster: MemoryCluster) -> None:
        faults = Recorder()
        faults.fail("create_pod", Unavailable("time-out"), moment=moment)
        cluster.faults = faults
        with pytest.raises(Unavailable):
            await cluster.create_pod(NAMESPACE, plain_pod("digits-0"))
        assert len(cluster.pods()) == (0 if moment is Moment.BEFORE else 1)
        assert [(call.verb, call.name, call.writes) for call in faults.calls] == [("create_pod", "digits-0", True)]

    with_cluster(test)
