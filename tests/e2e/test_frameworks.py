"""Other libraries' training loops on a cluster, by their examples' own manifests: a rank is killed before its third
report, and the loop resumes in the same pods.

Of some the libraries stand in the test image beside torch: those of `.venv`, which the test cluster's nodes show to its
pods. Others (JAX, TensorFlow, Open MPI) have folders of their own, which `make test-frameworks` fills: they are linked into
the folder that the nodes share, so that no image is made. On another cluster, E2E_FRAMEWORKS_IMAGE names an image that
has all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import places
from support import e2e
from support.by_path import module_at
from support.isolation import ROOT
from support.open_mpi import variables as open_mpi_variables
from support.release import operator
from trainjob.integrations.links import link_or_copy
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]
IMAGE = "E2E_FRAMEWORKS_IMAGE"
EXAMPLES = {
    "accelerate": ("--epochs", "3", "--save-every", "10"),
    "transformers": ("--steps", "40", "--save-every", "10", "--output", "/tmp/out"),
    "jax": ("--steps", "40", "--save-every", "10"),
    "tensorflow": ("--steps", "40", "--save-every", "10"),
    "mpi": ("--steps", "200", "--save-every", "20"),
}
LIBRARIES = {"jax": "requirements.txt", "tensorflow": "requirements-tensorflow.txt", "mpi": "requirements-mpi.txt"}
"""Examples whose libraries have a folder of their own."""
IN_PODS = "/opt/frameworks/site-packages"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
    launcher = ["mpirun.openmpi"] if example == "mpi" else []
    container["command"] = [*launcher, "python", f"{at}/struck.py", "3", f"{at}/train.py", *EXAMPLES[example]]
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] == "code"]
    code = next(one for one in pod["volumes"] if one["name"] == "code")["configMap"]["name"]
    pod["volumes"] = [{"name": "code", "configMap": {"name": code}}]
    if example in LIBRARIES and IMAGE not in os.environ:
        show_libraries(LIBRARIES[example], container, pod)
    del job["spec"]["checkpoint"]["storage"]
    data = {path.name: path.read_text(encoding="utf-8") for path in (folder / "train.py", ROOT / STRUCK)}
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": code, "namespace": namespace}, "data": data}
    return [held, job]


def show_libraries(requirements: str, container: dict[str, Any], pod: dict[str, Any]) -> None:
    """The folder of these requirements, which is filled first where it is empty, in the job's pods."""
    environment = module_at(ROOT / "tests" / "frameworks" / "environment.py")
    wanted = ROOT / "tests" / "frameworks" / requirements
    folder: Path = environment.folder(wanted)
    if not folder.is_dir():
        environment.install(wanted, folder)
    shown = places.shared_folder() / "frameworks" / folder.name
    if not shown.is_dir():
        made = shown.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        # Not the link to itself by the name of site-packages: here the folder is mounted by that name.
        ignored = shutil.ignore_patterns("site-packages")
        shutil.copytree(folder, made, symlinks=True, copy_function=link_or_copy, ignore=ignored)
        made.rename(shown)
    container["volumeMounts"].append({"name": "libraries", "mountPath": IN_PODS, "readOnly": True})
    path = f"{e2e.SHARED}/frameworks/{folder.name}"
    pod["volumes"].append({"name": "libraries", "hostPath": {"path": path, "type": "Directory"}})
    variables = {"PYTHONPATH": IN_PODS}
    packages = folder / "debian" / "usr"
    if packages.is_dir():
        variables |= open_mpi_variables(packages, at=f"{IN_PODS}/debian/usr", path=PATH)
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_killed_rank_of_a_framework_resumes_in_the_same_pods(namespace: str, example: str) -> None:
    e2e.apply(*manifest(example, namespace, "loop"))
    e2e.eventually("pods", lambda: len(e2e.uids("loop", namespace)) == 2)
    before = e2e.uids("loop", namespace)
    e2e.wait_for_condition("loop", namespace, "Complete", within_s=600)
    job = e2e.job("loop", namespace)
    assert e2e.uids("loop", namespace) == before, "the same pods"
    assert job["status"]["attempt"]["number"] == 2
    failure = job["status"]["lastFailure"]
    if example == "mpi":
        # mpirun ends all ranks with the one: which of them is named is whose end is heard of first.
        assert failure is not None
    else:
        assert (failure["rank"], failure["reason"]) == (1, contract.REASON_SIGNAL)
    assert job["status"]["checkpoint"]["latest"]["step"] == job["status"]["progress"]["step"]
    assert job["status"]["attempt"]["resumedFrom"] == "1-1-2"
