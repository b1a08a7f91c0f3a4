"""What a join costs at a bucket: a few requests, whatever the run has stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import s3
from support.checkpoint import Job
from support.s3_faults import Faults
from trainjob.agent.attempts import start_point
from trainjob.checkpoint.storage_child.operations import perform
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.transfer import nothing

OBJECTS = 2_100
"""Three pages of a list: whoever reads one would ask twice more."""


class Child:
    """The storage child's operations, in this process."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.probed = self.refused_at_first = False

    async def call(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(perform, {"op": op, "storage": self.uri, **fields}, nothing)


@pytest.mark.slow
def test_a_join_asks_for_as_much_however_much_the_run_has_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(s3.endpoint())
    uri = s3.fresh_uri()
    s3.use(monkeypatch, faults.endpoint)

    def join(child: Child, attempt: int) -> Counter[str]:
        faults.requests.clear()
        spec = SimpleNamespace(resume_from="auto")
        config = SimpleNamespace(job_uid="uid-1", spec=spec)
        site: Any = SimpleNamespace(storage=child, config=config, warn=lambda text: None)
        settled = asyncio.run(start_point.settle(site, attempt, []))
        assert settled.checkpoint is None or settled.checkpoint.id == "1-1-1"
        return Counter(request.split(" ", 1)[0] for request in list(faults.requests))

    try:
        job = Job(tmp_path, open_store(uri))
        child = Child(uri)
        join(child, 1)
        job.save("1-1-1")
        few, few_anew = join(child, 2), join(Child(uri), 3)
        # Shards of one older checkpoint; straight to the server, as the proxy is slow.
        bucket, _, prefix = uri[len("s3://") :].partition("/")
        client = s3.client(s3.endpoint())
        with ThreadPoolExecutor(8) as threads:
            keys = [f"{prefix}/checkpoints/1-1-0/shard-{number}" for number in range(OBJECTS)]
            list(threads.map(lambda key: client.put_object(Bucket=bucket, Key=key, Body=b"x"), keys))
        assert join(child, 4) == few
        assert join(Child(uri), 5) == few_anew
        assert sum(few.values()) < sum(few_anew.values()) < 35, "it is tried once an agent what storage can do"
    finally:
        faults.close()
