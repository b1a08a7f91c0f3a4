"""Other libraries' training loops on a cluster, by their examples' own manifests: a rank is killed before its third
report, and the loop resumes in the same pods.

The examples whose libraries stand in the test image beside torch: those of `.venv`, which the test cluster's nodes show
to its pods. On another cluster, E2E_FRAMEWORKS_IMAGE names an image that has them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from support import e2e
from support.isolation import ROOT
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]
IMAGE = "E2E_FRAMEWORKS_IMAGE"
EXAMPLES = {
    "accelerate": ("--epochs", "3", "--save-every", "10"),
    "transformers": ("--steps", "40", "--save-every", "10", "--output", "/tmp/out"),
}
STRUCK = "tests/frameworks/struck.py"
"""Runs a script and kills rank 1 of the first attempt."""


def manifest(example: str, namespace: str, name: str) -> list[dict[str, Any]]:
    """The example's own, with its code, for this cluster: its image, and no claim that all pods can write."""
    folder = ROOT / "examples" / example
    job: dict[str, Any] = yaml.safe_load((folder / "trainjob.yaml").read_text(encoding="utf-8"))
    job["metadata"] = {"name": name, "namespace": namespace}
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    like = e2e.training_job(name, namespace)["spec"]["template"]["spec"]["containers"][0]
    container["image"] = os.environ.get(IMAGE, like["image"])
    container["imagePullPolicy"] = like.get("imagePullPolicy", "IfNotPresent")
    container["env"] = [*(container.get("env") or ()), {"name": "OMP_NUM_THREADS", "value": "1"}]
    container["workingDir"] = "/workspace"
    container["resources"] = like["resources"]
    at = f"examples/{example}"
    container["command"] = ["python", f"{at}/struck.py", "3", f"{at}/train.py", *EXAMPLES[example]]
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] == "code"]
    code = next(one for one in pod["volumes"] if one["name"] == "code")["configMap"]["name"]
    pod["volumes"] = [{"name": "code", "configMap": {"name": code}}]
    del job["spec"]["checkpoint"]["storage"]
    data = {path.name: path.read_text(encoding="utf-8") for path in (folder / "train.py", ROOT / STRUCK)}
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": code, "namespace": namespace}, "data": data}
    return [held, job]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_killed_rank_of_a_framework_resumes_in_the_same_pods(namespace: str, example: str) -> None:
    e2e.apply(*manifest(example, namespace, "loop"))
    e2e.eventually("pods", lambda: len(e2e.uids("loop", namespace)) == 2, within_s=120)
    before = e2e.uids("loop", namespace)
    e2e.wait_for_condition("loop", namespace, "Complete", within_s=600)
    job = e2e.job("loop", namespace)
    assert e2e.uids("loop", namespace) == before, "the same pods"
    assert job["status"]["attempt"]["number"] == 2
    failure = job["status"]["lastFailure"]
    assert (failure["rank"], failure["reason"]) == (1, contract.REASON_SIGNAL)
    assert job["status"]["checkpoint"]["latest"]["step"] == job["status"]["progress"]["step"]
    assert job["status"]["attempt"]["resumedFrom"] == "1-1-2"
