"""Decisions become calls: order, what counts as done, what stops the turn."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.clusters import INSTALLATION, NAMESPACE, Recorder, decision, observed, plain_pod, stored_job
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api.v1alpha1 import Condition, TrainJob
from trainjob_operator.cluster import Conflict, Rejected, Unavailable
from trainjob_operator.core.model import CreatePod, DeleteJob, DeletePod, EnsureService, Event
from trainjob_operator.loop.actions import ForeignPod
from trainjob_operator.loop.apply import Applied, apply, event_manifest
from trainjob_operator.loop.side_by_side import PARALLEL_CALLS
from trainjob_operator.loop.status_writes import merge_patch
from trainjob_operator.memory import Call, MemoryCluster, Moment
from trainjob_operator.memory.store import merge

CONDITION = Condition(
    type="Complete", status="False", reason="NotFinished", last_transition_time=datetime(2026, 1, 1, tzinfo=UTC)
)


class Bench:
    """A cluster with one job, and the calls that were made on it."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = MemoryCluster(VirtualClock())
        self.job = stored_job(self.cluster, **spec)
        self.calls = Recorder()
        self.cluster.faults = self.calls

    async def done(self, *actions: Any, events: tuple[Event, ...] = (), told: Any = (), **status: Any) -> Applied:
        """What became of it."""
        return await apply(
            self.cluster,
            observed(self.job),
            decision(self.job, *actions, events=events, **status),
            INSTALLATION,
            told,
            lambda job: None,
        )

    async def apply(self, *actions: Any, events: tuple[Event, ...] = (), **status: Any) -> TrainJob:
        """The job as committed; nothing may fail."""
        done = await self.done(*actions, events=events, **status)
        assert (done.creates, done.error) == (None, None)
        return done.job

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.pods()]

    async def own_pod(self, name: str, slot: int = 0) -> str:
        pod = await self.cluster.create_pod(
            NAMESPACE, plain_pod(name, owner=self.cluster.job(NAMESPACE, "digits"), slot=slot)
        )
        self.calls.calls.clear()
        return str(pod["metadata"]["uid"])


def on_bench(test: Any, **spec: Any) -> None:
    async def main() -> None:
        await test(Bench(**spec))

    run_virtual(main())


HELLO = Event("Normal", "Hello", "world")


# --- Order and the status ---------------------------------------------------------------------------------------------


def test_everything_in_its_order() -> None:
    async def test(bench: Bench) -> None:
        uid = await bench.own_pod("digits-9", slot=9)
        committed = await bench.apply(
            DeletePod("digits-9", uid),
            CreatePod(0),
            EnsureService(),
            CreatePod(1),
            events=(HELLO,),
            slots="0-1",
            next_slot=2,
        )
        assert bench.calls.verbs == [
            "patch_job_status",
            "delete_pod",
            "create_service",
            "create_pod",
            "create_pod",
            "create_event",
        ]
        assert committed.status.slots == "0-1"
        assert (
            committed.metadata.resource_version == bench.cluster.job(NAMESPACE, "digits")["metadata"]["resourceVersion"]
        )

    on_bench(test)


def test_a_status_that_does_not_differ_is_not_written() -> None:
    async def test(bench: Bench) -> None:
        committed = await bench.apply()
        assert bench.calls.verbs == []
        assert committed == bench.job

    on_bench(test)


def test_only_what_changed_is_in_the_patch_and_removed_fields_are_none() -> None:
    async def test(bench: Bench) -> None:
        bench.job = await bench.apply(phase="Running", slots="0-1", conditions=[CONDITION])
        bench.job = await bench.apply(phase=None, next_slot=2)
        status = bench.cluster.job(NAMESPACE, "digits")["status"]
        assert "phase" not in status
        assert (status["slots"], status["nextSlot"]) == ("0-1", 2)

    on_bench(test)


def test_the_first_write_carries_the_zeros_that_kubectl_shows() -> None:
    async def test(bench: Bench) -> None:
        await bench.apply(slots="0-1", conditions=[CONDITION])
        assert bench.cluster.job(NAMESPACE, "digits")["status"]["failures"]["counted"] == 0

    on_bench(test)


def test_a_conflict_of_the_status_stops_the_turn() -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.update_job_spec(NAMESPACE, "digits", {"workers": 7})
        with pytest.raises(Conflict):
            await bench.apply(CreatePod(0), EnsureService(), events=(HELLO,), slots="0")
        assert bench.calls.verbs == ["patch_job_status"]

    on_bench(test)


_JSON = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.lists(st.integers(), max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)
_DOCUMENT = st.dictionaries(st.sampled_from("abc"), _JSON, max_size=3)


@given(_DOCUMENT, _DOCUMENT)
def test_the_patch_makes_the_new_of_the_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch(old, new)
    assert merge(old, patch) == new
    assert (patch == {}) == (old == new)


# --- Pods -------------------------------------------------------------------------------------------------------------


def test_a_pod_of_ours_that_is_there_already_counts_as_created() -> None:
    async def test(bench: Bench) -> None:
        await bench.own_pod("digits-0")
        await bench.apply(CreatePod(0))
        assert bench.calls.verbs == ["create_pod", "get_pod"]

    on_bench(test)


def test_a_lost_reply_of_a_create_is_made_good_by_the_next_turn() -> None:
    async def test(bench: Bench) -> None:
        bench.calls.fail("create_pod", Unavailable("time-out"), moment=Moment.AFTER)
        done = await bench.done(CreatePod(0))
        assert done.creates is not None and done.creates.unanswered == "time-out"
        await bench.apply(CreatePod(0))
        assert bench.names() == ["digits-0"]

    on_bench(test)


def test_somebody_elses_pod_is_named_and_the_others_are_still_created() -> None:
    async def test(bench: Bench) -> None:
        bench.cluster.add_pod({"metadata": {"name": "digits-0", "namespace": NAMESPACE}, "spec": {"containers": []}})
        done = await bench.done(CreatePod(0), CreatePod(1))
        assert isinstance(done.error, ForeignPod) and "digits-0 exists and is not owned" in str(done.error)
        assert done.taken == {"digits-0"} and done.creates is None
        assert bench.names() == ["digits-0", "digits-1"]

    on_bench(test)


def test_deletes_tolerate_what_is_gone_and_refuse_a_namesake() -> None:
    async def test(bench: Bench) -> None:
        await bench.apply(DeletePod("digits-0", "some-uid"))
        await bench.own_pod("digits-0")
        done = await bench.done(DeletePod("digits-0", "the-uid-of-the-one-before"))
        assert isinstance(done.error, Conflict)
        assert bench.names() == ["digits-0"]

    on_bench(test)


def test_the_grace_of_a_delete_is_passed_on() -> None:
    async def test(bench: Bench) -> None:
        uid = await bench.own_pod("digits-0")
        bench.cluster.bind_pod(NAMESPACE, "digits-0", "node-1")
        await bench.apply(DeletePod("digits-0", uid, grace_s=7))
        assert bench.cluster.pods()[0]["metadata"]["deletionGracePeriodSeconds"] == 7

    on_bench(test)


def test_creates_run_side_by_side_and_bounded() -> None:
    async def test(bench: Bench) -> None:
        at_once, most = 0, 0

        async def slow(call: Call, moment: Moment) -> None:
            nonlocal at_once, most
            if call.verb == "create_pod" and moment is Moment.BEFORE:
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(1.0)
                at_once -= 1

        bench.cluster.faults = slow
        began = asyncio.get_running_loop().time()
        await bench.apply(*(CreatePod(slot) for slot in range(40)))
        assert len(bench.names()) == 40
        assert most == PARALLEL_CALLS
        assert asyncio.get_running_loop().time() - began == 3.0

    on_bench(test)


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_an_api_that_does_not_take_pods_is_not_asked_for_more_of_them_and_everything_else_is_done() -> None:
    async def test(bench: Bench) -> None:
        uid = await bench.own_pod("digits-200", slot=200)
        bench.calls.fail("create_pod", Unavailable("503: webhook", retry_after_s=7.0), times=100)
        done = await bench.done(
            *(CreatePod(slot) for slot in range(100)), DeletePod("digits-200", uid), events=(HELLO,)
        )
        assert bench.calls.verbs.count("create_pod") <= PARALLEL_CALLS
        assert bench.names() == [] and [event["reason"] for event in bench.cluster.events()] == ["Hello"]
        assert done.creates is not None and done.error is None
        assert (done.creates.unanswered, done.creates.retry_after_s) == ("503: webhook", 7.0)

    on_bench(test)


def test_deletes_that_get_no_answer_keep_no_pod_from_being_created() -> None:
    async def test(bench: Bench) -> None:
        bench.calls.fail("delete_pod", Unavailable("504"), times=100)
        done = await bench.done(*(DeletePod(f"digits-{slot}", "uid") for slot in range(50, 90)), CreatePod(0))
        assert bench.calls.verbs.count("delete_pod") <= PARALLEL_CALLS
        assert bench.names() == ["digits-0"]
        assert done.creates is None and isinstance(done.error, Unavailable)

    on_bench(test)


def test_a_refused_deletion_is_told_as_what_it_is_and_once() -> None:
    async def test(bench: Bench) -> None:
        uid = await bench.own_pod("digits-0")
        told: tuple[str, ...] = ()
        for _ in range(2):
            bench.calls.fail("delete_pod", Rejected("a policy protects this pod"))
            done = await bench.done(DeletePod("digits-0", uid), told=told)
            told = done.refused_deletes
            assert done.error is None and done.refused_deletes == ("a policy protects this pod",)
            assert done.refused == {uid}
        assert [(event["reason"], event["count"]) for event in bench.cluster.events()] == [("FailedDelete", 1)]

    on_bench(test)


def test_a_quota_is_told_as_an_event_once() -> None:
    async def test(bench: Bench) -> None:
        for slot in range(30):
            bench.calls.fail("create_pod", Rejected(f'pods "digits-{slot}" is forbidden: exceeded quota: pods'))
        done = await bench.done(*(CreatePod(slot) for slot in range(31)), events=(HELLO,))
        assert bench.names() == ["digits-30"], "what fits is created"
        assert done.creates is not None
        assert done.creates.refusals == ('pods "digits-0" is forbidden: exceeded quota: pods',)
        assert sorted((event["reason"], event["count"]) for event in bench.cluster.events()) == [
            ("FailedCreate", 1),
            ("Hello", 1),
        ]

    on_bench(test)


def test_a_service_that_is_there_is_no_error() -> None:
    async def test(bench: Bench) -> None:
        await bench.apply(EnsureService())
        await bench.apply(EnsureService(), CreatePod(0))
        assert bench.names() == ["digits-0"]

    on_bench(test)


def test_the_job_is_deleted_by_its_uid_and_once() -> None:
    async def test(bench: Bench) -> None:
        assert isinstance((await bench.done(DeleteJob("another-uid"))).error, Conflict)
        await bench.apply(DeleteJob(bench.job.metadata.uid))
        assert bench.cluster.jobs() == []
        await bench.apply(DeleteJob(bench.job.metadata.uid))

    on_bench(test)


# --- Events -----------------------------------------------------------------------------------------------------------


def test_an_events_name_follows_from_what_it_says() -> None:
    async def test(bench: Bench) -> None:
        names = {
            event_manifest(bench.job, event)["metadata"]["name"]
            for event in (HELLO, HELLO, Event("Normal", "Hello", "you"), Event("Normal", "Bye", "world"))
        }
        assert len(names) == 3
        await bench.apply(events=(HELLO, HELLO))
        await bench.apply(events=(HELLO,))
        (stored,) = bench.cluster.events()
        assert stored["count"] == 2
        assert stored["involvedObject"]["uid"] == bench.job.metadata.uid

    on_bench(test)
