"""`tj checkpoints` and `tj model get` from a laptop, of jobs on the cluster: a bucket, the same after the job is
gone, and a volume through the commands that are given.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.binaries import binary
from support import e2e, gated, s3_cluster
from support.release import operator  # noqa: F401 - a fixture
from support.s3_cluster import S3Server, s3_server  # noqa: F401 - a fixture
from trainjob_api import contract

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]


def tj(
    words: str, cwd: Path, environment: Mapping[str, str], code: int = contract.CLI_OK
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "trainjob.cli", *shlex.split(words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=e2e.PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, f"tj {words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_a_bucket_is_read_verified_and_cleared_also_when_the_job_is_gone(
    namespace: str,
    s3_server: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    storage = f"s3://{s3_server.bucket()}/jobs"
    s3_cluster.start("count", namespace, s3_server, storage, "--steps", "4", "--mode", "SYNC")
    e2e.wait_for_condition("count", namespace, "Complete")
    shown = e2e.job("count", namespace)["status"]["checkpoint"]["latest"]
    with s3_server.reachable() as laptop:
        listed = json.loads(tj(f"checkpoints list count -n {namespace} -o json", tmp_path, laptop).stdout)
        assert [item["id"] for item in listed["items"]] == [f"1-1-{n}" for n in (1, 2, 3, 4)]
        assert (listed["items"][-1]["uri"], listed["items"][-1]["marks"]) == (shown["uri"], ["latest"])
        assert "is intact" in tj(f"checkpoints verify count -n {namespace} latest", tmp_path, laptop).stdout
        e2e.kubectl("delete", "tj", "count", "-n", namespace)
        e2e.eventually("the job is gone", lambda: not e2e.listed("tj", namespace))
        gone = tj(f"model get count -n {namespace} -o model", tmp_path, laptop, contract.CLI_NOT_FOUND)
        assert "there is no TrainJob count" in gone.stderr and "--storage s3://" in gone.stderr
        tj(f"model get count --storage {storage} -n {namespace} -o model", tmp_path, laptop)
        assert any((tmp_path / "model").iterdir())
        tj(f"checkpoints download {shown['uri']} -o copy", tmp_path, laptop)
        assert "1-1-4 is intact" in tj("checkpoints verify ./copy", tmp_path, {}).stdout
        tj(f"checkpoints rm count --storage {storage} -n {namespace} 1-1-1 1-1-2 --yes", tmp_path, laptop)
        left = tj(f"checkpoints list count --storage {storage} -n {namespace} -o name --all", tmp_path, laptop).stdout
    assert left.split() == ["1-1-3", "1-1-4"]
    bucket, _, folder = storage.removeprefix("s3://").partition("/")
    assert s3_server.stored(bucket, f"{folder}/{namespace}/count/checkpoints/1-1-1/*") == []


def test_a_volume_is_reached_by_the_commands_that_are_given(namespace: str, tmp_path: Path) -> None:
    """On the nodes' own folder; this machine sees none of it."""
    gated.start("count", namespace, "--steps", "3", "--mode", "SYNC")
    e2e.wait_for_condition("count", namespace, "Complete")
    e2e.eventually(
        "its pods have ended", lambda: all(pod["status"]["phase"] != "Running" for pod in e2e.pods("count", namespace))
    )
    refused = tj(f"checkpoints list count -n {namespace}", tmp_path, {}, contract.CLI_ERROR)
    assert "which this machine does not see" in refused.stderr
    commands = [line.strip() for line in refused.stderr.split("next: ")[1].splitlines()]
    for command in commands[:4]:
        words = shlex.split(command)
        assert words[0] == "kubectl"
        done = subprocess.run(
            [shutil.which("kubectl") or str(binary("kubectl")), *words[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=e2e.PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    shown = tj(commands[4].removeprefix("tj "), tmp_path, {}).stdout
    assert shown.splitlines()[-1].split()[0] == e2e.job("count", namespace)["status"]["checkpoint"]["latest"]["id"]
    assert "is intact" in tj("checkpoints verify ./count", tmp_path, {}).stdout
