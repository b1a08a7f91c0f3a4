"""The whole loop on a real API server: reconciler, KubeCluster and puppet agents, with the rights of the operator's
role and no more.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.kube_world import JOBS, Kubelets, Watch, children_are_gone, tell_of_changes, until
from support.patience import HANG_S
from support.puppets import TOKEN, Pace, World
from support.simulation import MASTER_KEY, manifest
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.callers import bearer
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.agents.owners import owner_in
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import Manifest
from trainjob_operator.core.model import Installation
from trainjob_operator.k8s.kube import KubeCluster
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.rights import RULES, Where
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.reconciler import Reconciler

pytestmark = [on_apiserver, pytest.mark.slow]

QUICK = Pace(schedule=(0.0, 0.02), start=(0.0, 0.05), report=0.05, notice=0.1)
SILENT = Pace(schedule=(0.0, 0.02), start=(0.0, 0.05), report=10**6)
QUIET_TURNS = 30


class Noting(KubeCluster):
    """How many status writes were of progress alone: they depend on how long a job takes."""

    of_progress = 0

    async def patch_job_status(self, namespace: str, name: str, resource_version: str, status: Manifest) -> Manifest:
        # The clock on a start and the books go with what is written anyway.
        beside = {"goodput", *(["attempt"] if set(status.get("attempt") or ()) == {"partsMs"} else [])}
        self.of_progress += set(status) - beside <= {"progress", "checkpoint"}
        return await super().patch_job_status(namespace, name, resource_version, status)


@dataclass
class Bed:
    """One namespace of the API server with an operator and a world in it."""

    admin: Api
    namespace: str
    world: World
    reconciler: Reconciler
    cluster: Noting
    job: TrainJob | None = None
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    """(method, path, status) of the operator."""
    looks: int = 0
    """Turns that are over."""

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path.rsplit("/", 1)[-1]) for method, path, _ in self.calls if method != "GET"]

    async def create(self, **spec: Any) -> None:
        head = {"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "digits"}}
        await self.admin.create(JOBS.format(self.namespace), {**head, "spec": manifest(**spec)["spec"]})

    async def stored(self) -> TrainJob:
        return TrainJob.model_validate(await self.admin.get(f"{JOBS.format(self.namespace)}/digits"))

    async def pods(self) -> list[str]:
        listed = await self.admin.list(f"/api/v1/namespaces/{self.namespace}/pods")
        return [pod["metadata"]["name"] for pod in listed if "deletionTimestamp" not in pod["metadata"]]

    def trains(self, attempt: int = 1) -> bool:
        return any(number >= attempt and group.all_running for (_, number), group in self.world.groups.items())

    def finished(self) -> bool:
        return self.job is not None and self.job.status.finished

    async def turns(self, count: int) -> None:
        """So many more looks at the job."""
        before = self.looks
        for number in range(1, count + 1):
            self.reconciler.enqueue((self.namespace, "digits"))
            await until(lambda number=number: self.looks >= before + number, f"turn {number}")  # type: ignore[misc]


def operators_kubeconfig(server: ApiServer, namespace: str) -> Path:
    """A service account with the role of a namespaced installation."""
    rules = [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in RULES
        if rule.where is Where.JOBS and rule.named is None
    ]
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "operator"}})
    server.request("POST", f"{roles}/roles", {"metadata": {"name": "operator"}, "rules": rules})
    binding = {
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    }
    server.request("POST", f"{roles}/rolebindings", binding)
    return server.service_account_kubeconfig(namespace, "operator")


@asynccontextmanager
async def bed_in(server: ApiServer, namespace: str, pace: Pace) -> AsyncIterator[Bed]:
    admin = await Api.connect(kubeconfig=str(server.kubeconfig))
    api = await Api.connect(kubeconfig=str(operators_kubeconfig(server, namespace)))
    cluster = Noting(api, (namespace,))
    clock = SystemClock()
    coordinator = Coordinator(
        clock=clock, authenticate=bearer(TOKEN), find_owner=owner_in(cluster), master_key=MASTER_KEY, transition=1
    )
    kubelets = Kubelets(admin, namespace)
    world = World(kubelets, lambda body: coordinator.serve(TOKEN, body), random.Random(1), pace)  # type: ignore[arg-type]
    world.clock = clock  # type: ignore[assignment]
    log = logging.getLogger("operator")
    installation = Installation(coordinator_url="http://coordinator")
    reconciler = Reconciler(
        Means(cluster=cluster, agents=coordinator, clock=clock, rng=random.Random(1), log=log),
        installation,
        hears=Hears(
            on_job=lambda job: setattr(bed, "job", job), on_turn=lambda _: setattr(bed, "looks", bed.looks + 1)
        ),
    )
    bed = Bed(admin, namespace, world, reconciler, cluster)
    api.on_call = lambda method, path, status, seconds: bed.calls.append((method, path, status))
    for work in (
        kubelets.run(),
        world.run_nodes(),
        tell_of_changes(Watch(admin, namespace), cluster),
        reconciler.run(),
    ):
        world.spawn(work)
    try:
        yield bed
    finally:
        await world.stop()
        await api.close()
        await admin.close()


def test_a_job_from_its_manifest_to_complete(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, QUICK) as bed:
            await bed.create(workers=3)
            await until(bed.finished, "the job is Complete")
            job = await bed.stored()
            assert job.status.holds("Complete") and job.status.failures.counted == 0 and job.status.slots == "0-2"
            assert job.status.attempt is not None and job.status.attempt.number == 1
            refused = [call for call in bed.calls if call[2] == 403]
            assert refused == [], "the operator's role has all that is needed"
            created = [path for method, path in bed.writes if method == "POST"]
            assert created.count("pods") == 3 and created.count("services") == 1
            # A goal of the design: N + 6 writes for a job, progress and events excepted; counted exactly in virtual time
            # (tests/sim/test_calls.py). Of a start that takes long more is told.
            needed = sum(path != "events" for _, path in bed.writes) - bed.cluster.of_progress
            assert needed <= 2 * (3 + 6), bed.writes

    asyncio.run(main())


def test_in_a_steady_state_nothing_is_written(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            await bed.create(workers=3)
            await until(bed.trains, "attempt 1 trains")
            await until(
                lambda: (
                    bed.job is not None
                    and bed.job.status.attempt is not None
                    and bed.job.status.attempt.running_at
                    and bed.job.status.holds("WorkersReady")
                ),
                "status says that it runs, and that all are ready: what is merely shown may be written later",
            )
            late: list[tuple[str, str]] = []
            while True:
                bed.calls.clear()
                await bed.turns(QUIET_TURNS)
                if not bed.writes:
                    break
                # What the start has left: progress, and what is merely shown, are put off by their pace, each once.
                late += bed.writes
                assert set(late) == {("PATCH", "status")} and len(late) <= 2, late
            assert len(bed.calls) <= QUIET_TURNS / 10, f"a turn that finds nothing to do asks for nothing: {bed.calls}"

    asyncio.run(main())


def test_a_lost_pod_alone_is_replaced(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            await bed.create(workers=3)
            await until(bed.trains, "attempt 1 trains")
            before = await bed.pods()
            bed.world.lose_pod(next(agent for agent in bed.world.agents.values() if agent.slot == 1))
            await until(lambda: bed.trains(2), "attempt 2 trains")
            assert before == ["digits-0", "digits-1", "digits-2"]
            assert await bed.pods() == ["digits-0", "digits-2", "digits-3"]
            assert (await bed.stored()).status.failures.counted == 1

    asyncio.run(main())


def test_a_misspelt_field_of_the_template_stops_a_job_before_its_first_start(
    apiserver: ApiServer, api_namespace: str
) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            pod = manifest()["spec"]["template"]["spec"]
            await bed.create(template={"spec": {**pod, "nodeSelectors": {"gpu": "a100"}}})
            await until(
                lambda: bed.job is not None and any(c.reason == "InvalidSpec" for c in bed.job.status.conditions),
                "the condition says so",
            )
            (condition,) = [c for c in (await bed.stored()).status.conditions if c.type == "ResourcesCreated"]
            assert condition.reason == "InvalidSpec" and 'unknown field "spec.nodeSelectors"' in condition.message
            assert await bed.pods() == []

    asyncio.run(main())


def test_a_job_that_ran_is_not_stopped_by_a_field_that_was_let_pass(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            await bed.create(workers=3)
            await until(bed.trains, "attempt 1 trains")
            with_typo = {"spec": {"suspend": True, "template": {"spec": {"nodeSelectors": {"gpu": "a100"}}}}}
            await bed.admin.merge_patch(f"{JOBS.format(api_namespace)}/digits", with_typo)
            await bed.admin.merge_patch(f"{JOBS.format(api_namespace)}/digits", {"spec": {"suspend": False}})
            # Unless the operator has seen the suspension: then all pods go, and come again.
            for agent in [agent for agent in bed.world.agents.values() if agent.slot == 1]:
                bed.world.lose_pod(agent)
            await until(lambda: bed.trains(2), "attempt 2 trains")

    asyncio.run(main())


def test_a_deleted_job_takes_everything_with_it(apiserver: ApiServer, api_namespace: str) -> None:
    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            await bed.create()
            await until(bed.trains, "attempt 1 trains")
            await bed.admin.delete(f"{JOBS.format(api_namespace)}/digits")
            await children_are_gone(bed.admin, api_namespace)
            assert await bed.pods() == []

    asyncio.run(main())


def no_pods_fit(server: ApiServer, namespace: str) -> None:
    """A quota, once the API server goes by it: it answers from a cache, in which a quota that was just made may be
    missing for half a minute.
    """
    server.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}},
    )
    pod = {"metadata": {"name": "one-more"}, "spec": {"containers": [{"name": "pause", "image": "pause"}]}}
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        try:
            server.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
        except urllib.error.HTTPError as error:
            if "exceeded quota: few" in error.msg:
                return
        time.sleep(0.05)
    raise AssertionError("the API server does not go by the quota")


def test_a_full_quota_becomes_an_event(apiserver: ApiServer, api_namespace: str) -> None:
    no_pods_fit(apiserver, api_namespace)

    async def main() -> None:
        async with bed_in(apiserver, api_namespace, SILENT) as bed:
            said: list[str] = []

            async def look() -> None:
                while not said:
                    events = await bed.admin.list(f"/api/v1/namespaces/{api_namespace}/events")
                    said.extend(event["message"] for event in events if event["reason"] == "FailedCreate")
                    await asyncio.sleep(0.05)

            await bed.create()
            await asyncio.wait_for(look(), HANG_S)
            assert "exceeded quota: few" in said[0]

    asyncio.run(main())
