"""How this machine reaches a job's bucket: its own settings first, then what the job's pods are given, and nothing of it stays behind."""

from __future__ import annotations

import os

import pytest

from support.s3 import clear
from support.trainjobs import document
from trainjob.launch import bucket
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import parse_trainjob


@pytest.fixture
def job() -> TrainJob:
    s3 = {"endpointURL": "http://s3.storage:9000/", "region": "eu-west-3", "credentialsSecret": "keys"}
    found: TrainJob = parse_trainjob(document({"spec.checkpoint": {"storage": "s3://bucket/jobs", "s3": s3}}))
    return found


def test_what_this_machine_says_counts_before_the_job(job: TrainJob) -> None:
    said = bucket.environ(job, {"AWS_ENDPOINT_URL": "http://127.0.0.1:7070", "AWS_PROFILE": "mine"})
    assert said == {"AWS_ENDPOINT_URL": "http://127.0.0.1:7070", "AWS_PROFILE": "mine", "AWS_REGION": "eu-west-3"}
    assert bucket.environ(job, {})["AWS_ENDPOINT_URL_S3"] == "http://s3.storage:9000"


def test_the_process_gets_its_own_settings_back(job: TrainJob, monkeypatch: pytest.MonkeyPatch) -> None:
    clear(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "")
    before = dict(os.environ)
    with pytest.raises(RuntimeError), bucket.settings_of(job):
        assert (os.environ["AWS_ENDPOINT_URL_S3"], os.environ["AWS_REGION"]) == ("http://s3.storage:9000", "eu-west-3")
        raise RuntimeError
    assert dict(os.environ) == before
