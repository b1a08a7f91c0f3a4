"""The coordinator alone, as a process: real TLS, real tokens, jobs of four workers that run; who reviews tokens is in
memory. Started by `benchmarks/reports.py`: `python -m benchmarks.coordinator JOBS`.

The first line on standard output is a JSON object with the port, the CA and each worker's token. It ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.core import World
from support.trust import MemoryApi
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.model import PodView
from trainjob_operator.core.pods.naming import pod_name
from trainjob_operator.process.limits import raise_open_files
from trainjob_operator.trust.certificates import ensure
from trainjob_operator.trust.tokens import TokenCheck

NAMESPACE = "scale"
WORKERS = 4


def running_jobs(count: int) -> Iterator[tuple[TrainJob, list[PodView]]]:
    """Each with its pods."""
    world = World.of(workers=WORKERS).run()
    for number in range(count):
        name, uid = f"job-{number}", f"uid-of-job-{number}"
        changes = {"name": name, "namespace": NAMESPACE, "uid": uid, "resource_version": "1"}
        job = world.job.model_copy(update={"metadata": world.job.metadata.model_copy(update=changes)})
        yield (
            job,
            [
                replace(pod, name=pod_name(name, pod.slot), uid=f"uid-of-{name}-{pod.slot}")
                for pod in world.pods.values()
            ],
        )


async def _no_owner(key: JobKey) -> str | None:
    return None


async def _main(count: int) -> None:
    api, clock = MemoryApi(), SystemClock()
    trust = await ensure(api, "operator", contract.COORDINATOR_SECRET, ["localhost"], clock)
    coordinator = Coordinator(
        clock=clock,
        authenticate=TokenCheck(api, contract.TOKEN_AUDIENCE, clock=clock),
        find_owner=_no_owner,
        master_key=trust.master_key,
    )
    agents: list[dict[str, Any]] = []
    for job, pods in running_jobs(count):
        coordinator.commit(job, pods)
        for pod in pods:
            token = api.signers[0].token(pod.name, pod.uid, now=time.time(), namespace=NAMESPACE)
            said = {
                "namespace": NAMESPACE,
                "job": job.metadata.name,
                "job_uid": job.metadata.uid,
                "slot": pod.slot,
                "pod": pod.name,
                "pod_uid": pod.uid,
            }
            agents.append({"token": token, "said": said})
    url = await coordinator.start("127.0.0.1", 0, trust.ssl_context)
    print(json.dumps({"port": int(url.rpartition(":")[2]), "ca": trust.ca_pem, "agents": agents}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await coordinator.stop()


if __name__ == "__main__":
    raise_open_files()
    asyncio.run(_main(int(sys.argv[1])))
