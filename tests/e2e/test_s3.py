"""Checkpoints on S3: an S3 server as a pod, jobs that reach it with a Secret, and what happens when it, its keys or
the workers go.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import e2e, gated, s3_cluster
from support.release import operator  # noqa: F401 - a fixture
from support.s3_cluster import S3Server, s3_server  # noqa: F401 - a fixture
from trainjob_api import contract

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]


def manifests(server: S3Server, storage: str) -> list[str]:
    bucket, _, folder = storage.removeprefix("s3://").partition("/")
    return server.stored(bucket, f"{folder}/*/.trainjob/manifest.json")


def trouble(name: str, namespace: str) -> str:
    """What the job says of its checkpoints; empty: nothing."""
    degraded = e2e.condition(e2e.job(name, namespace), "Degraded")
    return str(degraded["message"]) if degraded and degraded["reason"] == contract.REASON_CHECKPOINT_FAILING else ""


def test_killed_ranks_and_new_pods_go_on_from_it(namespace: str, s3_server: S3Server) -> None:  # noqa: F811
    """The image has no boto3: the one that the runtime image brings does it all."""
    storage = f"s3://{s3_server.bucket()}/jobs"
    s3_cluster.start(
        "count", namespace, s3_server, storage, "--gates", "4,6", "--steps", "8", "--mode", "SYNC", own_boto3=False
    )
    gated.wait_for_step("count", namespace, 3)
    before = e2e.uids("count", namespace)
    e2e.kill_rank("count-1", namespace, 1)
    begun = gated.wait_for_starts("count", namespace, 2, 2)
    assert gated.lost(begun) == 0 and begun[0].step == 4
    assert e2e.uids("count", namespace) == before, "no pod was replaced"
    gated.open_gate("count", namespace, 4)
    gated.wait_for_step("count", namespace, 5, attempt=2)
    e2e.kubectl("delete", "pod", "count-0", "-n", namespace, "--wait=false")
    begun = gated.wait_for_starts("count", namespace, 3, 2)
    assert gated.lost(begun) == 0 and begun[0].step == 6
    gated.open_gate("count", namespace, 6)
    e2e.wait_for_condition("count", namespace, "Complete")
    e2e.eventually("what was deleted is gone", lambda: gated.is_gone("pod", "count-0", namespace))
    assert e2e.uids("count", namespace)["count-1"] == before["count-1"]
    latest = e2e.job("count", namespace)["status"]["checkpoint"]["latest"]
    assert latest["uri"] == f"{storage}/{namespace}/count/checkpoints/1-3-2"
    assert f"jobs/{namespace}/count/checkpoints/1-3-2/.trainjob/manifest.json" in manifests(s3_server, storage)


def test_training_goes_on_while_it_is_away(namespace: str, s3_server: S3Server) -> None:  # noqa: F811
    storage = f"s3://{s3_server.bucket()}/jobs"
    s3_cluster.start("count", namespace, s3_server, storage, "--gates", "3,5,6", "--steps", "9")
    gated.wait_for_step("count", namespace, 2)
    e2e.eventually("all that was saved is stored", lambda: latest(namespace) == "1-1-3")
    s3_server.go()
    try:
        gated.open_gate("count", namespace, 3)
        gated.wait_for_step("count", namespace, 4)
        told = e2e.eventually("the job says so", lambda: trouble("count", namespace))
        assert "does not answer" in told and storage in told
        assert gated.starts("count", namespace, 2) == [] and latest(namespace) == "1-1-3"
    finally:
        s3_server.come_back()
    e2e.eventually("what was saved meanwhile is stored", lambda: latest(namespace) == "1-1-5")
    e2e.eventually("the trouble is over", lambda: not trouble("count", namespace))
    gated.open_gate("count", namespace, 5)
    gated.wait_for_step("count", namespace, 5)
    gated.open_gate("count", namespace, 6)
    e2e.wait_for_condition("count", namespace, "Complete")
    job = e2e.job("count", namespace)
    assert job["status"]["attempt"]["number"] == 1 and gated.counted(job) == 0
    assert latest(namespace) == "1-1-9"
    assert {key.split("/")[-3] for key in manifests(s3_server, storage)} == {
        f"1-1-{number}" for number in range(1, 10)
    }, "whatever was acknowledged is there"
    gated.wait_for_steps("count", namespace, range(9))


def latest(namespace: str) -> str:
    checkpoint = e2e.job("count", namespace)["status"].get("checkpoint") or {}
    return str((checkpoint.get("latest") or {}).get("id"))


def test_what_it_refuses_is_said(namespace: str, s3_server: S3Server) -> None:  # noqa: F811
    bucket = s3_server.bucket()
    s3_server.credentials(namespace, "wrong", AWS_SECRET_ACCESS_KEY="not the right one")
    wrong: dict[str, Any] = {"checkpoint": s3_server.spec(f"s3://{bucket}/jobs", "wrong")}
    for name, storage, spec in (
        ("keys", f"s3://{bucket}/jobs", wrong),
        ("bucket", "s3://no-such-bucket/jobs", {}),
        ("secret", f"s3://{bucket}/jobs", None),
    ):
        given = {"checkpoint": s3_server.spec(storage, "no-such-secret")} if spec is None else spec
        s3_cluster.start(name, namespace, s3_server, storage, workers=1, spec=given)
    said = {
        name: e2e.eventually(f"{name} says what is wrong", lambda name=name: complaint(name, namespace))
        for name in ("keys", "bucket", "secret")
    }
    assert "the credentials are not valid" in said["keys"] and "spec.checkpoint.s3.credentialsSecret" in said["keys"]
    assert "there is no bucket no-such-bucket" in said["bucket"] and "aws s3 mb s3://no-such-bucket" in said["bucket"]
    assert 'secret "no-such-secret" not found' in said["secret"]


def complaint(name: str, namespace: str) -> str:
    status = e2e.job(name, namespace).get("status", {})
    texts = [str((status.get("lastFailure") or {}).get("message") or "")]
    texts += [
        entry.get("message", "")
        for entry in status.get("conditions", [])
        if entry["type"] in ("WorkersReady", "Degraded", "PodsScheduled", "ResourcesCreated")
    ]
    return next(
        (text for text in texts if "credentials are not" in text or "no bucket" in text or "not found" in text), ""
    )


def test_a_job_applied_again_and_scaled_goes_on_from_it(namespace: str, s3_server: S3Server) -> None:  # noqa: F811
    """Two workers, then three, then one; each start has the checkpoint of the size before."""
    storage = f"s3://{s3_server.bucket()}/jobs"
    words = ("--gates", "3,5,6", "--steps", "7", "--mode", "SYNC")
    s3_cluster.start("count", namespace, s3_server, storage, *words)
    gated.wait_for_step("count", namespace, 2)
    e2e.kubectl("delete", "tj", "count", "-n", namespace)
    e2e.eventually("its pods are gone", lambda: not e2e.pods("count", namespace))
    s3_cluster.start("count", namespace, s3_server, storage, *words, workers=3)
    begun = gated.wait_for_starts("count", namespace, 1, 3)
    assert {(entry.step, entry.world) for entry in begun} == {(3, 3)}
    gated.open_gate("count", namespace, 3)
    gated.wait_for_step("count", namespace, 4)
    e2e.kubectl("scale", "tj", "count", "-n", namespace, "--replicas=1")
    begun = gated.wait_for_starts("count", namespace, 2, 1)
    assert {(entry.step, entry.world) for entry in begun} == {(5, 1)}
    for gate in (5, 6):
        gated.open_gate("count", namespace, gate)
    e2e.wait_for_condition("count", namespace, "Complete")
    status = e2e.job("count", namespace)["status"]
    assert status["attempt"]["run"] == 2 and status["checkpoint"]["latest"]["id"] == "2-2-2"


# --- From a laptop that reaches the same store ------------------------------------------------------------------------

SCRIPT = """
import os, helper, trainjob
print("brought", os.path.getsize("data.bin"), helper.NAME, os.getcwd(), flush=True)
trainjob.report({"loss": 1.0}, checkpoint=trainjob.Checkpoint.from_dict({"step": 1}), step=1)
"""


def test_code_of_any_size_travels_through_the_bucket(namespace: str, s3_server: S3Server, tmp_path: Path) -> None:  # noqa: F811
    s3_server.credentials(namespace)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'helped'")
    (tmp_path / "data.bin").write_bytes(os.urandom(3 << 20))
    storage = f"s3://{s3_server.bucket()}/jobs"
    options = [
        "--image",
        e2e.IMAGE,
        "--name",
        "big",
        "--workers",
        "2",
        "--storage",
        storage,
        "--s3-endpoint",
        s3_server.url,
        "--s3-secret",
        s3_cluster.SECRET,
    ]
    with s3_server.reachable() as environment:
        words = [
            sys.executable,
            "-m",
            "trainjob.cli",
            "submit",
            "train.py",
            *options,
            "-n",
            namespace,
            "--wait",
            "--logs",
        ]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=e2e.PATIENCE_S + 60,
            check=False,
        )
    assert done.returncode == contract.CLI_OK, f"{done.stdout}\n{done.stderr}"
    for rank in ("r00", "r01"):
        assert f"{rank} | brought {3 << 20} helped /code" in done.stdout, done.stdout
    assert re.search(
        rf"code: 3 files, 3.0 MiB packed, in {storage}/{namespace}/big/code/[0-9a-f]{{64}}.tar.gz", done.stderr
    ), done.stderr


NOTEBOOK = """
import sys, trainjob

class Heard(trainjob.UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        print("heard", metrics[0]["step"], flush=True)

def loop():
    for step in range(1, 6):
        trainjob.report({"step": step}, step=step)
    return {"answer": 42, "rank": trainjob.get_context().get_world_rank()}

where = dict(zip(("image", "namespace", "storage", "endpoint", "secret"), sys.argv[1:]))
result = trainjob.TorchTrainer(
    loop,
    scaling_config=trainjob.ScalingConfig(num_workers=2),
    run_config=trainjob.RunConfig(name="fit", storage_path=where["storage"], callbacks=[Heard()]),
    backend=trainjob.Kubernetes(
        image=where["image"], namespace=where["namespace"], env={"OMP_NUM_THREADS": "1"}, s3={"endpointURL": where["endpoint"], "credentialsSecret": where["secret"]}
    ),
).fit()
print("returned", result.return_value, "rows", len(result.rows))
"""


def test_a_functions_return_value_comes_back(namespace: str, s3_server: S3Server, tmp_path: Path) -> None:  # noqa: F811
    s3_server.credentials(namespace)
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    words = [
        sys.executable,
        "notebook.py",
        e2e.IMAGE,
        namespace,
        f"s3://{s3_server.bucket()}/jobs",
        s3_server.url,
        s3_cluster.SECRET,
    ]
    with s3_server.reachable() as environment:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=e2e.PATIENCE_S + 60,
            check=False,
        )
    assert "returned {'answer': 42, 'rank': 0} rows 5" in done.stdout, f"{done.stdout}\n{done.stderr}"
    assert re.findall(r"^heard (\d)", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"]


# --- A folder instead -------------------------------------------------------------------------------------------------


def test_a_folder_that_each_node_has_for_itself_is_refused(namespace: str) -> None:
    gated.code(namespace)
    document = gated.looping("count", namespace, "--steps", "4")
    spec = document["spec"]["template"]["spec"]
    next(volume for volume in spec["volumes"] if volume["name"] == "checkpoints")["hostPath"]["path"] = (
        f"/var/tmp/{namespace}"
    )
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {contract.LABEL_JOB: "count"}}}
    spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    e2e.apply(document)
    failed = e2e.wait_for_condition("count", namespace, "Failed")
    assert (
        "The storage path /checkpoints/" in failed["message"]
        and "is not the same folder in all pods" in failed["message"]
    )
    assert "s3://bucket/folder" in failed["message"]
    assert e2e.job("count", namespace)["status"]["lastFailure"]["reason"] == contract.REASON_NOT_SHARED
