"""`tj checkpoints` and `tj model get` of a job on a cluster: its storage as this machine comes to it, and what its
status adds.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from support import s3
from support.apiserver import on_apiserver
from support.checkpoint import Job, read_tree
from support.cluster_cli import User, attempt, condition
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.stores.opening import open_store
from trainjob_api import contract

pytestmark = on_apiserver

CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "my-claim"}}
MOUNTS = [{"name": "data", "mountPath": "/data"}]


def volume_job(user: User, volume: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A job with its storage below a volume at /data."""
    pod = {"spec.template.spec.volumes": [volume], "spec.template.spec.containers.0.volumeMounts": MOUNTS}
    return user.create(
        {"spec.checkpoint": {"storage": "/data/runs", "scoreAttribute": "loss", "scoreOrder": "min"}, **pod, **changes}
    )


def stored(folder: Path, uri: str, uid: str, **metrics: dict[str, float]) -> Job:
    """The job's folder as its agents would have left it."""
    job = Job(folder, open_store(uri))
    settle(job.store, uid, "auto", [])
    for n, loss in enumerate((0.2, 0.1, 0.3), 1):
        job.save(f"1-1-{n}", step=10 * n, metrics={"loss": loss}, position=n)
    return job


@pytest.fixture
def shared(user: User, tmp_path: Path) -> Job:
    """A job on a folder of the nodes that this machine has too."""
    made = volume_job(user, {"name": "data", "hostPath": {"path": str(tmp_path / "disk")}})
    return stored(tmp_path, str(tmp_path / "disk" / "runs" / user.namespace / "digits"), made["metadata"]["uid"])


def test_a_folder_of_the_nodes_that_this_machine_has_is_read(user: User, shared: Job, tmp_path: Path) -> None:
    lines = user.tj("checkpoints", "list", "tj/digits").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1-1-1", "1-1-2", "1-1-3"]
    assert lines[2].endswith("best")
    assert ["loss=0.2" in lines[1], "loss=0.1" in lines[2], "loss=0.3" in lines[3]] == [True] * 3
    said = user.tj("model", "get", "digits", "-o", str(tmp_path / "out"))
    assert (said.code, "1-1-2 (step 20): the best by lowest loss, 0.1" in said.err) == (contract.CLI_OK, True)
    assert read_tree(tmp_path / "out") == shared.contents("1-1-2")


def test_what_the_status_says_is_in_use_stays(user: User, shared: Job) -> None:
    user.status(
        phase="Running",
        slots="0-1",
        attempt=attempt(2, "0-1", 2, resumedFrom="1-1-1"),
        conditions=[condition("Progressing", "True", "RanksRunning")],
    )
    assert [
        line.split("   ")[-1].strip() for line in user.tj("checkpoints", "list", "digits").out.splitlines()[1:]
    ] == ["in use", "best", "latest"]
    for id_, why in (
        ("1-1-1", "is in use: digits (Running) started from it"),
        ("1-1-3", "is the latest of digits (Running)"),
    ):
        refused = user.tj("checkpoints", "rm", "digits", id_, "--yes")
        assert (refused.code, why in refused.err) == (contract.CLI_ERROR, True), refused.err
        assert f"tj checkpoints rm digits -n {user.namespace} {id_} --force" in refused.err
    assert user.tj("checkpoints", "rm", "digits", "1-1-2", "--yes").code == contract.CLI_OK
    user.status(
        phase="Failed",
        attempt=attempt(2, "0-1", 2, state="Ended", resumedFrom="1-1-1"),
        conditions=[condition("Failed", "True", "RestartLimitExceeded")],
    )
    assert user.tj("checkpoints", "rm", "digits", "1-1-3", "1-1-1", "--yes").code == contract.CLI_OK


def test_another_disk_under_the_same_path_is_not_taken_for_it(user: User, tmp_path: Path) -> None:
    volume_job(user, {"name": "data", "hostPath": {"path": str(tmp_path)}})
    stored(tmp_path, str(tmp_path / "runs" / user.namespace / "digits"), "the uid of another job")
    refused = user.tj("checkpoints", "list", "digits")
    assert (refused.code, "on volume data (hostPath), which this machine does not see" in refused.err) == (
        contract.CLI_ERROR,
        True,
    )


def test_a_claim_is_reached_through_a_pod(user: User) -> None:
    volume_job(user, CLAIM, **{"spec.template.spec.securityContext": {"runAsUser": 1000}})
    refused = user.tj("checkpoints", "verify", "digits")
    folder = f"/data/runs/{user.namespace}/digits"
    assert refused.err.startswith(
        f"tj: the checkpoints of digits are in {folder} on claim my-claim, which this machine does not see\nnext: "
        "kubectl"
    )
    run, wait, copy, delete, then, _ = [line.strip() for line in refused.err.split("next: ")[1].splitlines()]
    words = shlex.split(run)
    assert words[:5] == ["kubectl", "-n", user.namespace, "run", "tj-files"]
    assert words[5] == "--image=torch"
    assert '"persistentVolumeClaim":{"claimName":"my-claim"}' in words[-1]
    assert '"runAsUser":1000' in words[-1]
    assert copy == f"kubectl -n {user.namespace} cp tj-files:{folder} ./digits"
    assert (wait.split()[3], delete.split()[3], then) == ("wait", "delete", "tj checkpoints list ./digits")
    assert "--timeout=15m" in wait, "kubectl itself waits for half a minute: an image of gigabytes takes longer"
    pod = {
        "metadata": {"name": "digits-0", "labels": {contract.LABEL_JOB: "digits", contract.LABEL_SLOT: "0"}},
        "spec": {"containers": [{"name": "trainer", "image": "x"}]},
    }
    user.server.request("POST", f"/api/v1/namespaces/{user.namespace}/pods", pod)
    user.server.request(
        "PATCH", f"/api/v1/namespaces/{user.namespace}/pods/digits-0/status", {"status": {"phase": "Running"}}
    )
    assert (
        f"next: kubectl -n {user.namespace} cp digits-0:{folder} ./digits -c trainer"
        in user.tj("checkpoints", "list", "digits").err
    )


def test_the_helper_pod_is_one_that_the_api_server_takes(user: User) -> None:
    import json

    volume_job(user, CLAIM)
    run = user.tj("checkpoints", "list", "digits").err.split("next: ")[1].splitlines()[0]
    overrides = next(word for word in shlex.split(run) if word.startswith("--overrides="))
    pod = {"metadata": {"name": "tj-files"}, **json.loads(overrides.partition("=")[2])}
    made = user.server.request("POST", f"/api/v1/namespaces/{user.namespace}/pods", pod)
    assert made["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/data"


def test_a_bucket_is_opened_with_this_machines_own_keys(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, uri = s3.endpoint(), s3.fresh_uri()
    s3.use(monkeypatch, endpoint)
    made = user.create(
        {
            "spec.checkpoint": {
                "storage": uri,
                "s3": {"endpointURL": endpoint, "region": "us-east-1", "credentialsSecret": "s3-keys"},
            }
        }
    )
    stored(tmp_path, f"{uri}/{user.namespace}/digits", made["metadata"]["uid"])
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name)
    assert user.tj("checkpoints", "list", "digits", "-o", "name").out.split() == ["1-1-1", "1-1-2", "1-1-3"]
    user.server.request("DELETE", user.path("digits"))
    gone = user.tj("checkpoints", "list", "digits")
    assert (gone.code, "there is no TrainJob digits" in gone.err, "--storage s3://BUCKET/FOLDER" in gone.err) == (
        contract.CLI_NOT_FOUND,
        True,
        True,
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert user.tj("checkpoints", "list", "digits", "--storage", uri, "-o", "name").out.split() == [
        "1-1-1",
        "1-1-2",
        "1-1-3",
    ]


def test_what_a_job_goes_on_from_in_another_folder_is_looked_for_behind_the_same_endpoint(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, uri = s3.endpoint(), s3.fresh_uri()
    s3.use(monkeypatch, endpoint, retry_s=1.0)
    made = user.create({"spec.checkpoint": {"storage": uri, "s3": {"endpointURL": endpoint, "region": "us-east-1"}}})
    stored(tmp_path, f"{uri}/before", "another uid")
    runs.claim(
        open_store(f"{uri}/{user.namespace}/digits"), made["metadata"]["uid"], f"{uri}/before/checkpoints/1-1-2", []
    )
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION"):
        monkeypatch.delenv(name)
    said = user.tj("checkpoints", "list", "digits")
    assert said.code == contract.CLI_OK, said.err


def test_a_bucket_that_this_machine_does_not_reach_comes_with_the_way_to_it(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.clear(monkeypatch)
    for name, value in s3.environment("unused", retry_s=0.1, timeout_s=0.5).items():
        if name not in ("AWS_ENDPOINT_URL_S3", "AWS_REGION"):
            monkeypatch.setenv(name, value)
    pytest.importorskip("boto3", reason="boto3 is not installed")
    user.create(
        {
            "spec.checkpoint": {
                "storage": "s3://bucket/x",
                "s3": {"endpointURL": "http://minio.no-such-namespace:9000", "credentialsSecret": "s3-keys"},
            }
        }
    )
    away = user.tj("checkpoints", "list", "digits")
    assert (away.code, "does not answer" in away.err) == (contract.CLI_ERROR, True), away.err
    assert "`kubectl port-forward -n no-such-namespace svc/minio 9000:9000`" in away.err
    assert "AWS_ENDPOINT_URL_S3=http://127.0.0.1:9000" in away.err
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "eu-west-3")  # another client than the one that is there
    without = user.tj("checkpoints", "list", "digits")
    assert "there are no credentials" in without.err
    assert (
        f"kubectl get secret s3-keys -n {user.namespace} -o jsonpath='{{.data.AWS_ACCESS_KEY_ID}}' | base64 -d"
        in without.err
    )


def test_a_job_without_storage_says_so(user: User) -> None:
    user.create()
    refused = user.tj("checkpoints", "list", "digits")
    assert (refused.code, "has no storage (spec.checkpoint.storage)" in refused.err) == (contract.CLI_NOT_FOUND, True)
