"""A pod may say any job UID. What it says must not end another tenant's job. Virtual time, the coordinator without
its socket.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from support.clusters import manifest
from support.virtual_time import VirtualClock, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.callers import Caller
from trainjob_operator.agents.coordinator import START_GRACE_S, Coordinator
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import PodPhase, PodView


def body(namespace: str, job_uid: str, seq: int) -> bytes:
    identity = {
        "namespace": namespace,
        "job": "digits",
        "job_uid": job_uid,
        "slot": 0,
        "pod": "digits-0",
        "pod_uid": f"pod-{namespace}",
    }
    return json.dumps({**identity, "boot": 1, "seq": seq, "address": "10.0.0.1:7000"}).encode()


def test_the_uid_of_another_tenants_job_cannot_be_declared_gone() -> None:
    async def authenticate(token: str) -> Caller | None:
        return Caller(pod_uid=f"pod-{token}", pod_name="digits-0", namespace=token)

    async def owner(key: JobKey) -> str | None:
        return f"uid-{key[0]}"

    async def main() -> None:
        coordinator = Coordinator(clock=VirtualClock(), authenticate=authenticate, find_owner=owner, master_key=b"key")
        for namespace in ("victim", "attacker"):
            metadata = {"name": "digits", "namespace": namespace, "uid": f"uid-{namespace}", "resourceVersion": "1"}
            job = TrainJob.model_validate({**manifest(), "metadata": metadata, "status": {"slots": "0"}})
            coordinator.commit(job, [PodView(slot=0, name="digits-0", uid=f"pod-{namespace}", phase=PodPhase.RUNNING)])
        await asyncio.sleep(START_GRACE_S + 1)

        async def told(namespace: str, uid: str, seq: int) -> Any:
            answer = await coordinator.serve(namespace, body(namespace, uid, seq))
            return answer.body["instruction"]["do"]

        assert await told("attacker", "uid-victim", 1) == contract.DO_EXIT, "no such job in its own namespace"
        assert await told("victim", "uid-victim", 1) == contract.DO_HOLD
        assert await told("attacker", "uid-attacker", 2) == contract.DO_HOLD

    run_virtual(main())
