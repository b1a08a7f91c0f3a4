"""How this machine reaches a job's bucket: its own settings first, then what the job's pods are given; the process's
environment stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import s3
from support.checkpoint import Job
from support.trainjobs import document
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch.cluster import bucket
from trainjob.launch.cluster.cluster_results import Reports, result_of
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import parse_trainjob


def job_at(storage: str, endpoint: str) -> TrainJob:
    reached = {"endpointURL": endpoint, "region": "eu-west-3", "credentialsSecret": "keys"}
    found: TrainJob = parse_trainjob(document({"spec.checkpoint": {"storage": storage, "s3": reached}}))
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"uid": "uid"})})


def test_what_this_machine_says_counts_before_the_job() -> None:
    job = job_at("s3://bucket/jobs", "http://s3.storage:9000/")
    said = bucket.environ(job, {"AWS_ENDPOINT_URL": "http://127.0.0.1:7070", "AWS_PROFILE": "mine"})
    assert said == {"AWS_ENDPOINT_URL": "http://127.0.0.1:7070", "AWS_PROFILE": "mine", "AWS_REGION": "eu-west-3"}
    assert bucket.environ(job, {})["AWS_ENDPOINT_URL_S3"] == "http://s3.storage:9000"


@pytest.fixture
def in_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainJob:
    """A job whose only report is in its bucket, that goes on from another folder there, and that alone says where
    that bucket is.
    """
    endpoint, uri = s3.endpoint(), s3.fresh_uri()
    s3.use(monkeypatch, endpoint)
    before = Job(tmp_path, open_store(f"{uri}/before"))
    before.save("1-1-1")
    job = job_at(uri, endpoint)
    store = open_store(defaults.job_storage(job) or "")
    runs.claim(store, "uid", before.store.uri(layout.folder(CheckpointId.parse("1-1-1"))), [])
    row = json.dumps({"kind": "report", "position": 1, "metrics": {"loss": 0.25}})
    store.put(layout.history_key(1, 1), f"{row}\n".encode())
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name)
    return job


@contextmanager
def the_environment_stays() -> Iterator[None]:
    """No variable of this process is set or taken away, not even for a moment."""
    names: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "putenv", lambda name, value: names.append(name))
        patch.setattr(os, "unsetenv", names.append)
        yield
    assert names == []


def test_a_result_comes_from_the_bucket_that_the_job_names(in_bucket: TrainJob) -> None:
    with the_environment_stays():
        result = result_of(in_bucket)
    assert (result.metrics, len(result.rows)) == ({"loss": 0.25}, 1)
    assert result.checkpoint is not None and result.checkpoint.id == "1-1-1", (
        "what it goes on from lies behind the same endpoint"
    )


def test_reports_come_from_the_bucket_that_the_job_names(in_bucket: TrainJob) -> None:
    progress = in_bucket.status.progress.model_copy(update={"position": 1})
    running = in_bucket.model_copy(update={"status": in_bucket.status.model_copy(update={"progress": progress})})
    with the_environment_stays():
        assert [one.metrics for one in Reports().new(running)] == [{"loss": 0.25}], "the status has no metrics"
