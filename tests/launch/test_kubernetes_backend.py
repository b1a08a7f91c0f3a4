"""The TrainJob that a TorchTrainer with backend=Kubernetes stands for, and what travels with it."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob import Kubernetes, RunConfig, ScalingConfig, TorchTrainer
from trainjob.launch import worker
from trainjob.launch.cluster import cluster_run, kubernetes
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover import carry, payload
from trainjob.launch.outcome.stored import Settings
from trainjob_api.validation import parse_trainjob

Manifest = dict[str, Any]


def packed(
    backend: Kubernetes, *, scaling: ScalingConfig | None = None, run: RunConfig | None = None, loop: Any = None
) -> tuple[Manifest, Manifest]:
    trainer = TorchTrainer(loop or (lambda: 1), scaling_config=scaling, run_config=run, backend=backend)
    settings: Settings = trainer._settings
    return cluster_run.packed(settings, backend, "team", "digits")


def test_ranks_are_packed_into_pods_and_the_payload_is_mounted() -> None:
    backend = Kubernetes(image="torch:1", env={"A": "b"}, gpus_per_pod=4)
    document, carried = packed(
        backend, scaling=ScalingConfig(num_workers=8, use_gpu=True, resources_per_worker={"CPU": 2})
    )
    job = parse_trainjob(document)
    container = carry.trainer(document)
    assert (job.spec.workers, job.spec.processes_per_worker) == (2, 4)
    assert container["command"] == ["python", "-m", "trainjob.launch.worker", "/trainjob-payload/payload"]
    assert container["resources"] == {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "4"}}
    assert container["env"] == [{"name": "A", "value": "b"}]
    assert container["volumeMounts"][-1]["mountPath"] == carry.PAYLOAD_DIR
    assert document["spec"]["template"]["spec"]["volumes"][-1]["configMap"]["name"] == carried["metadata"]["name"]
    assert job.spec.checkpoint.storage is None
    assert job.spec.failure_policy.max_failures == 0  # as in Ray Train


def test_the_template_of_the_user_stays_theirs() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1"}
    theirs = {
        "name": "trainer",
        "securityContext": {"runAsUser": 7},
        "env": [{"name": "A", "value": "old"}, {"name": "B", "value": "b"}],
        "args": ["x"],
    }
    template = {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [sidecar, theirs], "tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}},
    }
    backend = Kubernetes(image="torch:1", template=template, env={"A": "new"})
    document, _ = packed(backend, scaling=ScalingConfig(num_workers=2, label_selector={"zone": "z"}))
    spec = document["spec"]["template"]["spec"]
    assert document["spec"]["template"]["metadata"] == {"labels": {"team": "a"}}
    assert spec["containers"][0] == sidecar
    assert spec["containers"][1]["securityContext"] == {"runAsUser": 7}
    assert "args" not in spec["containers"][1]
    assert spec["containers"][1]["env"] == [{"name": "A", "value": "new"}, {"name": "B", "value": "b"}]
    assert spec["nodeSelector"] == {"a": "b", "zone": "z"}
    assert template["spec"]["containers"][1]["args"] == ["x"]
    parse_trainjob(document)


def test_volumes_and_storage() -> None:
    backend = Kubernetes(image="x", volumes={"/data": "claim", "/nfs": {"nfs": {"server": "s", "path": "/"}}})
    document, _ = packed(backend, run=RunConfig(storage_path="/data/runs"))
    spec = document["spec"]["template"]["spec"]
    assert spec["volumes"][0] == {"name": "trainer-volume-0", "persistentVolumeClaim": {"claimName": "claim"}}
    assert spec["volumes"][1] == {"name": "trainer-volume-1", "nfs": {"server": "s", "path": "/"}}
    assert document["spec"]["checkpoint"]["storage"] == "/data/runs"
    with pytest.raises(ConfigError, match=r"no volume of the pods holds that path \(mounted: /data, /nfs\)"):
        packed(backend, run=RunConfig(storage_path="/elsewhere"))
    with pytest.raises(ConfigError, match="absolute path inside the pods"):
        packed(backend, run=RunConfig(storage_path="runs"))


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("image", {"image": " "}),
        ("env", {"image": "x", "env": {"A": 1}}),
        ("volumes", {"image": "x", "volumes": {"data": "claim"}}),
        ("volumes", {"image": "x", "volumes": {"/data": 3}}),
        ("template", {"image": "x", "template": []}),
        ("gpus_per_pod", {"image": "x", "gpus_per_pod": 0}),
    ],
)
def test_wrong_settings_name_their_field(field: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Kubernetes.{field}"):
        Kubernetes(**arguments)


def test_submit_without_a_cluster_and_a_backend_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="starts a job on a cluster"):
        TorchTrainer(lambda: 1).submit()
    with pytest.raises(ConfigError, match=r"give trainjob\.Kubernetes"):
        TorchTrainer(lambda: 1, backend="k8s")  # type: ignore[arg-type]


def test_a_function_that_is_too_large_names_what_weighs() -> None:
    weights = b"x" * (carry.LIMIT_BYTES + 1)
    with pytest.raises(ConfigError, match=r"'weights'.*700 KiB is the most"):
        packed(Kubernetes(image="x"), loop=lambda: weights)


def test_a_helper_module_beside_the_notebook_travels_and_needs_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_mine.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import helper_of_mine  # type: ignore[import-not-found]

    _, carried = packed(Kubernetes(image="x"), loop=lambda: helper_of_mine.answer())
    pod = tmp_path / "pod"
    pod.mkdir()
    for name, data in carried["binaryData"].items():
        (pod / name).write_bytes(base64.b64decode(data))
    # A rank in an image without cloudpickle and without the helper: -S hides site-packages, -I the environment.
    roots = [str(Path(payload.__file__).parents[3]), str(Path(sys.modules["trainjob_api"].__file__ or "").parents[1])]
    code = f"""
import sys; sys.path[:0] = {roots!r}
from trainjob.launch import worker
from trainjob.launch.handover import payload
worker.check_python({str(pod / "payload")!r})
worker.import_cloudpickle({str(pod / worker.CLOUDPICKLE)!r})
print(payload.read({str(pod / "payload")!r}).train_loop(), any(path.endswith(".zip") and "cloudpickle" in path for path in sys.path))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=HANG_S, cwd=tmp_path
    )
    assert done.stdout.split() == ["42", "False"], done.stderr


def test_cloudpickle_travels_as_a_zip_that_python_imports_from() -> None:
    with zipfile.ZipFile(io.BytesIO(kubernetes.cloudpickle_archive())) as archive:
        assert "cloudpickle/__init__.py" in archive.namelist()


def test_another_python_is_refused_with_both_versions(tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(json.dumps({"python": "3.8"}).encode() + b"\n")
    with pytest.raises(
        worker.LaunchError, match=r"packed by Python 3.8 and this rank runs 3\.\d+: use the same version"
    ):
        worker.check_python(str(tmp_path / "payload"))
