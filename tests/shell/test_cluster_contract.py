"""What every implementation of `Cluster` promises.

To run it against another one: add a fixture that yields a `Bench` and name it in BENCHES. The bench's own verbs stand
for a user and a kubelet; everything else goes through the Protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.clusters import manifest, plain_pod
from support.kube_world import JOBS, Watch, children_are_gone, set_status, start_pod, tell_of_changes
from support.patience import HANG_S
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_operator.cluster import Cluster, Conflict, Manifest, Mark, News, NotFound, Rejected, Seen
from trainjob_operator.core.pods.objects import headless_service
from trainjob_operator.k8s.kube import KubeCluster
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.manifests import read_job
from trainjob_operator.memory import MemoryCluster

Test = Callable[[], Awaitable[None]]


@dataclass
class Bench:
    """One implementation, with what the world around it can do."""

    cluster: Cluster
    namespace: str
    run: Callable[[Any], None]
    """Runs a coroutine on the loop that the implementation wants."""
    create_job: Callable[[Manifest], Awaitable[Manifest]]
    change_spec: Callable[[str, Manifest], Awaitable[Manifest]]
    start_pod: Callable[[str], Awaitable[None]]
    """Bind the pod to a node and make it run."""
    end_pod: Callable[[str], Awaitable[None]]
    """Its containers have ended."""
    add_node: Callable[[str], Awaitable[object]]
    events: Callable[[], Awaitable[list[Manifest]]]
    settle: Callable[[], Awaitable[None]]
    """Let garbage collection and the like happen."""


@pytest.fixture
def memory() -> Iterator[Bench]:
    cluster = MemoryCluster(VirtualClock())

    async def create_job(document: Manifest) -> Manifest:
        return cluster.create_job(document)

    async def change_spec(name: str, patch: Manifest) -> Manifest:
        return cluster.update_job_spec("team", name, patch)

    async def start_pod(name: str) -> None:
        cluster.bind_pod("team", name, "node-1")
        cluster.set_pod_status("team", name, {"phase": "Running"})

    async def end_pod(name: str) -> None:
        cluster.set_pod_status("team", name, {"phase": "Failed"})

    async def add_node(name: str) -> None:
        cluster.add_node(name, {"unschedulable": True})

    async def events() -> list[Manifest]:
        return cluster.events()

    async def settle() -> None:
        await asyncio.sleep(0)

    yield Bench(cluster, "team", run_virtual, create_job, change_spec, start_pod, end_pod, add_node, events, settle)


@pytest.fixture
def kube(apiserver: ApiServer, api_namespace: str) -> Iterator[Bench]:
    """A real API server; what kopf tells the operator there, `tell_of_changes` does here."""
    with asyncio.Runner() as runner:
        api = runner.run(Api.connect(kubeconfig=str(apiserver.kubeconfig)))
        cluster = KubeCluster(api, (api_namespace,), services=True)

        async def watched(main: Awaitable[None]) -> None:
            watch = Watch(api, api_namespace)
            teller = asyncio.create_task(tell_of_changes(watch, cluster))
            try:
                await asyncio.wait_for(watch.open.wait(), HANG_S)
                await main
            finally:
                teller.cancel()

        async def create_job(document: Manifest) -> Manifest:
            head = {"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob"}
            return await api.create(
                JOBS.format(api_namespace),
                {**head, **document, "metadata": {**document["metadata"], "namespace": api_namespace}},
            )

        async def change_spec(name: str, patch: Manifest) -> Manifest:
            return await api.merge_patch(f"{JOBS.format(api_namespace)}/{name}", {"spec": patch})

        yield Bench(
            cluster,
            api_namespace,
            lambda main: runner.run(watched(main)),
            create_job,
            change_spec,
            lambda name: start_pod(api, api_namespace, name),
            lambda name: set_status(api, api_namespace, name, {"phase": "Failed"}),
            lambda name: api.create(
                "/api/v1/nodes",
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": True}},
            ),
            lambda: api.list(f"/api/v1/namespaces/{api_namespace}/events"),
            lambda: children_are_gone(api, api_namespace),
        )
        runner.run(api.close())


BENCHES = ["memory", pytest.param("kube", marks=on_apiserver)]


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Bench:
    found: Bench = request.getfixturevalue(request.param)
    return found


async def a_job(bench: Bench, **spec: Any) -> Manifest:
    return await bench.create_job(manifest(**spec))


# --- Jobs -------------------------------------------------------------------------------------------------------------


def test_an_absent_job_is_not_found(bench: Bench) -> None:
    async def main() -> None:
        with pytest.raises(NotFound):
            await bench.cluster.get_job(bench.namespace, "digits")
        with pytest.raises(NotFound):
            await bench.cluster.patch_job_status(bench.namespace, "digits", "1", {"phase": "Running"})
        with pytest.raises(NotFound):
            await bench.cluster.delete_job(bench.namespace, "digits", "some-uid")

    bench.run(main())


def test_a_job_comes_back_as_it_was_created(bench: Bench) -> None:
    async def main() -> None:
        await a_job(bench, workers=3)
        job = await bench.cluster.get_job(bench.namespace, "digits")
        assert job["spec"]["workers"] == 3
        assert job["metadata"]["uid"] and job["metadata"]["resourceVersion"] and job["metadata"]["creationTimestamp"]
        assert job["metadata"]["generation"] == 1
        assert [(j["metadata"]["namespace"], j["metadata"]["name"]) for j in await bench.cluster.list_jobs()] == [
            (bench.namespace, "digits")
        ]

    bench.run(main())


def test_a_status_patch_merges_and_removes(bench: Bench) -> None:
    async def main() -> None:
        version = (await a_job(bench))["metadata"]["resourceVersion"]
        first = await bench.cluster.patch_job_status(
            bench.namespace,
            "digits",
            version,
            {"phase": "Running", "workers": {"ready": 1, "desired": 2}, "slots": "0-1"},
        )
        assert first["status"]["phase"] == "Running"
        second = await bench.cluster.patch_job_status(
            bench.namespace,
            "digits",
            first["metadata"]["resourceVersion"],
            {"phase": None, "workers": {"ready": 2}, "failures": {"strikes": {"0": 1, "1": None}}},
        )
        assert "phase" not in second["status"]
        assert second["status"]["workers"] == {"ready": 2, "desired": 2}
        assert second["status"]["slots"] == "0-1"
        assert second["status"]["failures"]["strikes"] == {"0": 1}
        assert second == await bench.cluster.get_job(bench.namespace, "digits")

    bench.run(main())


def test_a_status_patch_of_an_older_version_is_a_conflict(bench: Bench) -> None:
    async def main() -> None:
        version = (await a_job(bench))["metadata"]["resourceVersion"]
        await bench.cluster.patch_job_status(bench.namespace, "digits", version, {"phase": "Running"})
        with pytest.raises(Conflict):
            await bench.cluster.patch_job_status(bench.namespace, "digits", version, {"phase": "Failed"})
        assert (await bench.cluster.get_job(bench.namespace, "digits"))["status"]["phase"] == "Running"

    bench.run(main())


def test_a_user_edit_between_read_and_write_is_a_conflict(bench: Bench) -> None:
    async def main() -> None:
        version = (await a_job(bench))["metadata"]["resourceVersion"]
        await bench.change_spec("digits", {"workers": 4})
        with pytest.raises(Conflict):
            await bench.cluster.patch_job_status(bench.namespace, "digits", version, {"phase": "Running"})

    bench.run(main())


def test_spec_and_status_do_not_touch_each_other(bench: Bench) -> None:
    async def main() -> None:
        created = await a_job(bench, workers=2)
        patched = await bench.cluster.patch_job_status(
            bench.namespace, "digits", created["metadata"]["resourceVersion"], {"phase": "Running"}
        )
        assert patched["metadata"]["generation"] == 1, "a status write is no new generation"
        changed = await bench.change_spec("digits", {"workers": 5})
        assert changed["metadata"]["generation"] == 2
        assert changed["status"]["phase"] == "Running"
        assert patched["spec"] == created["spec"]

    bench.run(main())


def test_a_status_in_a_new_manifest_is_dropped(bench: Bench) -> None:
    async def main() -> None:
        created = await bench.create_job({**manifest(), "status": {"phase": "Complete"}})
        assert not created.get("status")

    bench.run(main())


def test_a_job_is_deleted_only_by_its_uid(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        with pytest.raises(Conflict):
            await bench.cluster.delete_job(bench.namespace, "digits", "00000000-0000-0000-0000-000000000000")
        await bench.cluster.delete_job(bench.namespace, "digits", job["metadata"]["uid"])
        with pytest.raises(NotFound):
            await bench.cluster.get_job(bench.namespace, "digits")

    bench.run(main())


def test_children_go_with_their_owner(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        owned = plain_pod("digits-0", owner=job)
        service = {
            "metadata": {"name": "digits", "ownerReferences": owned["metadata"]["ownerReferences"]},
            "spec": {"clusterIP": "None"},
        }
        await bench.cluster.create_pod(bench.namespace, owned)
        await bench.cluster.create_pod(bench.namespace, plain_pod("digits-9", slot=9))
        await bench.cluster.create_service(bench.namespace, service)
        await bench.cluster.delete_job(bench.namespace, "digits", job["metadata"]["uid"])
        await bench.settle()
        assert [pod["metadata"]["name"] for pod in await bench.cluster.list_pods(bench.namespace, "digits")] == [
            "digits-9"
        ]
        with pytest.raises(NotFound):
            await bench.cluster.get_service(bench.namespace, "digits")

    bench.run(main())


def test_a_recreated_job_has_another_uid(bench: Bench) -> None:
    async def main() -> None:
        first = await a_job(bench)
        await bench.cluster.delete_job(bench.namespace, "digits", first["metadata"]["uid"])
        second = await a_job(bench)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]

    bench.run(main())


# --- Pods -------------------------------------------------------------------------------------------------------------


def test_pods_are_listed_by_the_jobs_label(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        await bench.cluster.create_pod(bench.namespace, plain_pod("other-0", job="other"))
        assert [pod["metadata"]["name"] for pod in await bench.cluster.list_pods(bench.namespace, "digits")] == [
            "digits-0"
        ]
        assert await bench.cluster.list_pods(bench.namespace, "nobody") == []
        assert (await bench.cluster.get_pod(bench.namespace, "other-0"))["metadata"]["labels"][
            "trainjob.dev/job"
        ] == "other"

    bench.run(main())


def test_a_second_pod_of_a_name_is_a_conflict(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        first = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        with pytest.raises(Conflict):
            await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        assert (await bench.cluster.get_pod(bench.namespace, "digits-0"))["metadata"]["uid"] == first["metadata"]["uid"]

    bench.run(main())


def test_a_pod_is_deleted_only_by_its_uid(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        with pytest.raises(Conflict):
            await bench.cluster.delete_pod(bench.namespace, "digits-0", "00000000-0000-0000-0000-000000000000", 0)
        await bench.cluster.delete_pod(bench.namespace, "digits-0", pod["metadata"]["uid"], 0)
        with pytest.raises(NotFound):
            await bench.cluster.get_pod(bench.namespace, "digits-0")
        with pytest.raises(NotFound):
            await bench.cluster.delete_pod(bench.namespace, "digits-0", pod["metadata"]["uid"], 0)

    bench.run(main())


def test_a_pod_is_patched_only_by_its_uid(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        patch = {"metadata": {"annotations": {"trainjob.dev/coordinator-ca": "PEM"}}}
        with pytest.raises((Conflict, Rejected)):
            await bench.cluster.patch_pod(bench.namespace, "digits-0", "00000000-0000-0000-0000-000000000000", patch)
        found = await bench.cluster.get_pod(bench.namespace, "digits-0")
        assert "annotations" not in found["metadata"]
        patched = await bench.cluster.patch_pod(bench.namespace, "digits-0", pod["metadata"]["uid"], patch)
        assert patched["metadata"]["annotations"] == patch["metadata"]["annotations"]
        assert patched["metadata"]["labels"] == pod["metadata"]["labels"]
        with pytest.raises(NotFound):
            await bench.cluster.patch_pod(bench.namespace, "nobody", pod["metadata"]["uid"], patch)

    bench.run(main())


def test_a_running_pod_is_marked_and_stays_until_its_node_lets_go(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        await bench.start_pod("digits-0")
        await bench.cluster.delete_pod(bench.namespace, "digits-0", pod["metadata"]["uid"], 20)
        marked = await bench.cluster.get_pod(bench.namespace, "digits-0")
        assert marked["metadata"]["deletionTimestamp"] and marked["metadata"]["deletionGracePeriodSeconds"] == 20
        with pytest.raises(Conflict):
            await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))

    bench.run(main())


def test_an_unbound_pod_goes_at_once(bench: Bench) -> None:
    async def main() -> None:
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0"))
        await bench.cluster.delete_pod(bench.namespace, "digits-0", pod["metadata"]["uid"])
        assert await bench.cluster.list_pods(bench.namespace, "digits") == []

    bench.run(main())


def test_a_pod_that_has_ended_goes_at_once(bench: Bench) -> None:
    async def main() -> None:
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0"))
        await bench.start_pod("digits-0")
        await bench.end_pod("digits-0")
        await bench.cluster.delete_pod(bench.namespace, "digits-0", pod["metadata"]["uid"], 20)
        assert await bench.cluster.list_pods(bench.namespace, "digits") == []

    bench.run(main())


def test_a_second_delete_only_shortens_the_first(bench: Bench) -> None:
    async def main() -> None:
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0"))
        await bench.start_pod("digits-0")
        uid = pod["metadata"]["uid"]
        graces = []
        for grace in (None, 60, 7):
            await bench.cluster.delete_pod(bench.namespace, "digits-0", uid, grace)
            graces.append(
                (await bench.cluster.get_pod(bench.namespace, "digits-0"))["metadata"]["deletionGracePeriodSeconds"]
            )
        assert graces == [30, 30, 7]
        await bench.cluster.delete_pod(bench.namespace, "digits-0", uid, 0)
        assert await bench.cluster.list_pods(bench.namespace, "digits") == []

    bench.run(main())


def test_a_patch_of_nothing_makes_no_version(bench: Bench) -> None:
    async def main() -> None:
        version = (await a_job(bench))["metadata"]["resourceVersion"]
        first = await bench.cluster.patch_job_status(bench.namespace, "digits", version, {"phase": "Running"})
        again = await bench.cluster.patch_job_status(
            bench.namespace, "digits", first["metadata"]["resourceVersion"], {"phase": "Running", "slots": None}
        )
        assert again == first

    bench.run(main())


def test_names_that_nothing_can_have_are_not_found(bench: Bench) -> None:
    """Agents name jobs: what they say must not lead to another path."""

    async def main() -> None:
        await a_job(bench)
        for name in ("..", "../trainjobs/digits", "digits/status", "digits?x=1", "", "a" * 300):
            with pytest.raises(NotFound):
                await bench.cluster.get_job(bench.namespace, name)
            with pytest.raises(NotFound):
                await bench.cluster.get_job(f"{bench.namespace}/trainjobs/digits/..", name)

    bench.run(main())


# --- Services and events ----------------------------------------------------------------------------------------------


def test_services(bench: Bench) -> None:
    async def main() -> None:
        with pytest.raises(NotFound):
            await bench.cluster.get_service(bench.namespace, "digits")
        await bench.cluster.create_service(
            bench.namespace, {"metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}
        )
        with pytest.raises(Conflict):
            await bench.cluster.create_service(
                bench.namespace, {"metadata": {"name": "digits"}, "spec": {"clusterIP": "None"}}
            )
        assert (await bench.cluster.get_service(bench.namespace, "digits"))["spec"]["clusterIP"] == "None"

    bench.run(main())


def test_the_same_event_again_raises_its_count(bench: Bench) -> None:
    async def main() -> None:
        involved = {
            "apiVersion": "trainjob.dev/v1alpha1",
            "kind": "TrainJob",
            "name": "digits",
            "namespace": bench.namespace,
        }
        event = {
            "metadata": {"name": "digits.1"},
            "involvedObject": involved,
            "type": "Normal",
            "reason": "Started",
            "message": "attempt 1",
        }
        for _ in range(3):
            await bench.cluster.create_event(bench.namespace, event)
        (known,) = await bench.events()
        assert known["count"] == 3 and known["firstTimestamp"] <= known["lastTimestamp"]

    bench.run(main())


def test_what_events_say_of_a_pod(bench: Bench) -> None:
    async def main() -> None:
        one, other = [
            await bench.cluster.create_pod(bench.namespace, plain_pod(name)) for name in ("digits-0", "digits-1")
        ]
        for number, (pod, kind) in enumerate(((one, "Warning"), (one, "Normal"), (other, "Warning"))):
            about = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "namespace": bench.namespace,
                "uid": pod["metadata"]["uid"],
            }
            event = {
                "metadata": {"name": f"said.{number}"},
                "involvedObject": about,
                "type": kind,
                "reason": "FailedMount",
                "message": "no such volume",
            }
            await bench.cluster.create_event(bench.namespace, event)
        (told,) = await bench.cluster.list_pod_events(bench.namespace, "digits-0", warnings_of=one["metadata"]["uid"])
        assert told["metadata"]["name"] == "said.0" and told["message"] == "no such volume"
        assert (
            await bench.cluster.list_pod_events(bench.namespace, "digits-0", warnings_of=other["metadata"]["uid"]) == []
        )
        assert {
            event["metadata"]["name"] for event in await bench.cluster.list_pod_events(bench.namespace, "digits-0")
        } == {"said.0", "said.1"}
        await bench.cluster.delete_pod(bench.namespace, "digits-0", one["metadata"]["uid"], 0)
        assert len(await bench.cluster.list_pod_events(bench.namespace, "digits-0")) == 2, "they outlive the pod"

    bench.run(main())


def test_a_node_is_read(bench: Bench) -> None:
    async def main() -> None:
        with pytest.raises(NotFound):
            await bench.cluster.get_node(f"node-of-{bench.namespace}")
        await bench.add_node(f"node-of-{bench.namespace}")
        assert (await bench.cluster.get_node(f"node-of-{bench.namespace}"))["spec"]["unschedulable"] is True

    bench.run(main())


def test_a_service_is_patched_in_the_version_that_was_read(bench: Bench) -> None:
    async def main() -> None:
        spec = {"clusterIP": "None", "selector": {"a": "b", "c": "d"}, "ports": [{"port": 80}]}
        service = await bench.cluster.create_service(bench.namespace, {"metadata": {"name": "digits"}, "spec": spec})
        metadata = {"resourceVersion": service["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "spec": {"selector": {"a": "x", "c": None}, "ports": None}}
        patched = await bench.cluster.patch_service(bench.namespace, "digits", patch)
        assert patched["spec"]["selector"] == {"a": "x"} and "ports" not in patched["spec"]
        with pytest.raises(Conflict):
            await bench.cluster.patch_service(bench.namespace, "digits", patch)
        with pytest.raises(NotFound):
            await bench.cluster.patch_service(bench.namespace, "nobody", {"spec": {"selector": None}})

    bench.run(main())


# --- Watch ------------------------------------------------------------------------------------------------------------


async def told(watch: AsyncIterator[News]) -> tuple[object, ...]:
    """The next that the watch tells: a mark, or kind, name, UID and whether it is gone."""
    news = await asyncio.wait_for(anext(watch), HANG_S)
    if not isinstance(news, Seen):
        return (news,)
    metadata = news.manifest["metadata"]
    assert news.key[0] == metadata["namespace"]
    return news.kind, metadata["name"], metadata["uid"], news.gone


def test_the_watch_starts_with_what_there_is_and_tells_what_changes(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        first = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        async with contextlib.aclosing(bench.cluster.watch()) as watch:  # type: ignore[type-var]
            assert await told(watch) == (Mark.BEGIN,)
            listed = {await told(watch), await told(watch)}
            assert listed == {
                ("TrainJob", "digits", job["metadata"]["uid"], False),
                ("Pod", "digits-0", first["metadata"]["uid"], False),
            }
            assert await told(watch) == (Mark.COMPLETE,)
            pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-1", owner=job))
            lives, gone = (("Pod", "digits-1", pod["metadata"]["uid"], ended) for ended in (False, True))
            while (news := await told(watch)) != lives:
                assert news in listed, "what there was may come twice"
            await bench.cluster.delete_pod(bench.namespace, "digits-1", pod["metadata"]["uid"], 0)
            while (news := await told(watch)) != gone:
                assert news == lives, "it is marked before it goes"

    bench.run(main())


def test_the_watch_tells_of_a_service_that_bears_a_jobs_label(bench: Bench) -> None:
    async def main() -> None:
        job = read_job(await a_job(bench))
        made = await bench.cluster.create_service(bench.namespace, headless_service(job))
        there, gone = (("Service", "digits", made["metadata"]["uid"], ended) for ended in (False, True))
        listed = {("TrainJob", "digits", job.metadata.uid, False), there}
        async with contextlib.aclosing(bench.cluster.watch()) as watch:  # type: ignore[type-var]
            assert await told(watch) == (Mark.BEGIN,)
            assert {await told(watch), await told(watch)} == listed
            assert await told(watch) == (Mark.COMPLETE,)
            await bench.cluster.create_service(bench.namespace, {"metadata": {"name": "other"}, "spec": made["spec"]})
            spec = {"selector": {"a": "b"}}
            patched = await bench.cluster.patch_service(bench.namespace, "digits", {"spec": spec})
            while (news := await anext(watch)).manifest["spec"].get("selector") != patched["spec"]["selector"]:
                assert (news.kind, news.manifest["metadata"]["name"], news.manifest["metadata"]["uid"], False) in listed
            await bench.cluster.delete_job(bench.namespace, "digits", job.metadata.uid)
            while await told(watch) != gone:
                pass

    bench.run(main())


def test_a_pod_that_loses_its_label_is_gone_to_the_watch(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        pod = await bench.cluster.create_pod(bench.namespace, plain_pod("digits-0", owner=job))
        uid = pod["metadata"]["uid"]
        async with contextlib.aclosing(bench.cluster.watch()) as watch:  # type: ignore[type-var]
            while await told(watch) != (Mark.COMPLETE,):
                pass
            unlabelled = {"metadata": {"labels": {contract.LABEL_JOB: None}}}
            await bench.cluster.patch_pod(bench.namespace, "digits-0", uid, unlabelled)
            while not (isinstance(news := await anext(watch), Seen) and news.gone):
                pass
            metadata = news.manifest["metadata"]
            assert (news.key, metadata["uid"]) == ((bench.namespace, "digits"), uid)
            assert "deletionTimestamp" not in metadata and contract.LABEL_JOB in metadata["labels"]
            assert int(metadata["resourceVersion"]) > int(pod["metadata"]["resourceVersion"])

    bench.run(main())


def test_the_watch_tells_of_a_deleted_job(bench: Bench) -> None:
    async def main() -> None:
        job = await a_job(bench)
        async with contextlib.aclosing(bench.cluster.watch()) as watch:  # type: ignore[type-var]
            while await told(watch) != (Mark.COMPLETE,):
                pass
            await bench.cluster.delete_job(bench.namespace, "digits", job["metadata"]["uid"])
            while (news := await told(watch)) != ("TrainJob", "digits", job["metadata"]["uid"], True):
                assert news == ("TrainJob", "digits", job["metadata"]["uid"], False)

    bench.run(main())


# --- Copies -----------------------------------------------------------------------------------------------------------


def test_what_is_handed_in_or_out_is_nobodys_reference(bench: Bench) -> None:
    async def main() -> None:
        document = manifest()
        await bench.create_job(document)
        document["spec"]["workers"] = 99
        got = await bench.cluster.get_job(bench.namespace, "digits")
        got["spec"]["template"]["spec"]["containers"].clear()
        again = await bench.cluster.get_job(bench.namespace, "digits")
        assert again["spec"]["workers"] == 2
        assert again["spec"]["template"]["spec"]["containers"]

    bench.run(main())
