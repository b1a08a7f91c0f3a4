"""`tj submit`: manifests, scripts with their code, and what is refused before anything is created."""

from __future__ import annotations

import base64
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support import s3
from support.apiserver import on_apiserver
from support.cluster_cli import Said, User, condition, until
from support.patience import HANG_S
from support.trainjobs import document
from trainjob.checkpoint.storage_child import code
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch.handover import carry
from trainjob_api import contract

pytestmark = on_apiserver


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's directory, with a script and a helper."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import helper, sys; print(helper.NAME, sys.argv[1:])")
    (tmp_path / "helper.py").write_text("NAME = 'helped'")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "huge.bin").write_bytes(b"x")
    (tmp_path / ".tjignore").write_text("# not code\ndata/\n*.log\n")
    (tmp_path / "old.log").write_text("no")
    return tmp_path


def manifest(folder: Path, *documents: object) -> str:
    (folder / "job.yaml").write_text(yaml.safe_dump_all(documents))
    return "job.yaml"


# --- Manifests --------------------------------------------------------------------------------------------------------


def test_a_manifest_is_created_with_the_options_over_it(user: User, folder: Path) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}}
    shown = user.tj(
        "submit", "-f", manifest(folder, claim, document()), "--workers", "3", "--restarts", "7", "--env", "A=b"
    )
    assert shown.code == contract.CLI_OK, shown.err
    assert shown.out == f"trainjob.trainjob.dev/digits created in namespace {user.namespace}\n"
    assert "also holds PersistentVolumeClaim" in shown.err
    assert f"next: `tj logs digits -n {user.namespace} -f` follows it" in shown.err
    spec = user.get()["spec"]
    assert (spec["workers"], spec["failurePolicy"]["maxFailures"]) == (3, 7)
    assert spec["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]


def test_a_job_that_was_made_is_told_as_made_where_its_first_line_cannot_be_said(
    user: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("submit", "-f", manifest(folder, document()))
    with monkeypatch.context() as patch, open("/dev/full", "w") as full:
        patch.setattr(sys, "stdout", full)
        assert user.tj(*words).code == contract.CLI_OK
    assert user.get()["metadata"]["name"] == "digits"


def test_one_that_is_there_already_is_replaced_only_when_asked(user: User, folder: Path) -> None:
    file = manifest(folder, document())
    assert user.tj("submit", "-f", file).code == contract.CLI_OK
    before = user.get()["metadata"]["uid"]
    refused = user.tj("submit", "-f", file)
    assert refused.code == contract.CLI_ERROR
    assert "--replace" in refused.err.splitlines()[-1]
    assert user.get()["metadata"]["uid"] == before
    assert user.tj("submit", "-f", file, "--replace").code == contract.CLI_OK
    assert user.get()["metadata"]["uid"] != before


def test_what_cannot_run_is_refused_with_its_field_and_not_created(user: User, folder: Path) -> None:
    refused = user.tj("submit", "-f", manifest(folder, document({"spec.checkpoint": {"storage": "s3://b"}})))
    assert refused.code == contract.CLI_ERROR
    assert "spec.checkpoint.storage" in refused.err
    mixed = user.tj("submit", "-f", manifest(folder, document({"metadata.namespace": "elsewhere"})))
    assert (mixed.code, "says namespace elsewhere" in mixed.err) == (contract.CLI_USAGE, True)
    assert user.server.request("GET", user.path())["items"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to submit"),
        (["train.py"], "needs an image"),
        (["train.py", "-f", "job.yaml"], "not both"),
        (["-f", "job.yaml", "--image", "x", "--gpus", "2"], "--image, --gpus: a manifest says this itself"),
        (["missing.py", "--image", "x"], "there is no file missing.py"),
        (["../outside.py", "--image", "x"], "is not inside"),
        (["train.py", "--image", "x", "--storage", "/data/runs"], "is on no volume of the pods"),
        (["train.py", "--image", "x", "--storage", "data", "--volume", "claim:/data"], "is on no volume"),
        (["train.py", "--image", "x", "--track", "csv=/logs"], "--track csv=/logs is on no volume of the pods"),
        (["train.py", "--image", "x", "--volume", "claim"], "is not CLAIM:/PATH"),
        (["train.py", "--image", "x", "--workers", "0"], "'0' is no number of workers: give 4, or 2-8"),
        (
            ["train.py", "--image", "x", "--on-upload-failure", "stop"],
            "--on-upload-failure (spec.checkpoint.onUploadFailure): must be one of Continue, Fail",
        ),
        (
            ["-f", "job.yaml", "--on-upload-failure", "stop"],
            "--on-upload-failure (spec.checkpoint.onUploadFailure): must be one of Continue, Fail",
        ),
        (
            ["-f", "job.yaml", "--s3-ca-config-map", "ca"],
            "--s3-ca-config-map (spec.checkpoint.s3): must be left out unless storage or resumeFrom is at s3://",
        ),
        (
            ["train.py", "--image", "x", "--storage", "s3://b_b"],
            "--storage (spec.checkpoint.storage): must be s3://bucket/folder; 'b_b' is no bucket's name",
        ),
    ],
)
def test_wrong_usage_is_refused_before_the_cluster_is_asked(
    user: User, folder: Path, words: list[str], said: str
) -> None:
    (folder.parent / "outside.py").write_text("")
    manifest(folder, document())
    refused = user.tj("submit", *words)
    assert refused.code in (contract.CLI_USAGE, contract.CLI_ERROR)
    assert said in refused.err
    assert refused.err.splitlines()[-1].startswith("next: ")
    assert user.core("configmaps") == [] or all(
        "-code-" not in found["metadata"]["name"] for found in user.core("configmaps")
    )


def test_what_pods_need_goes_over_a_script_and_over_a_manifest(user: User, folder: Path) -> None:
    (folder / "pod.yaml").write_text(
        yaml.safe_dump(
            {
                "spec": {
                    "priorityClassName": "low",
                    "containers": [
                        {"name": "trainer", "image": "torch:2", "volumeMounts": [{"name": "d", "mountPath": "/data"}]},
                        {"name": "sidecar", "image": "side:1"},
                    ],
                    "volumes": [{"name": "d", "emptyDir": {}}],
                }
            }
        )
    )
    options = ["--restricted", "--label", "team=ml", "--secret-env", "TOKEN=hub:token", "--toleration", "gpu"]
    shown = user.tj(
        "submit", "train.py", "--name", "made", "--template", "pod.yaml", "--storage", "/data/runs", *options
    )
    assert shown.code == contract.CLI_OK, shown.err
    job = user.get("made")
    pod = job["spec"]["template"]["spec"]
    assert (job["metadata"]["labels"], pod["priorityClassName"]) == ({"team": "ml"}, "low")
    trainer, sidecar = pod["containers"]
    assert (trainer["image"], trainer["command"][-1], sidecar["name"]) == ("torch:2", "train.py", "sidecar")
    assert trainer["securityContext"] == sidecar["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in trainer["env"]

    assert user.tj("submit", "-f", manifest(folder, document()), *options).code == contract.CLI_OK
    assert user.get()["spec"]["template"]["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    (folder / "bare.yaml").write_text("spec: {containers: [{name: trainer}]}")
    refused = user.tj("submit", "train.py", "--template", "bare.yaml")
    assert refused.code == contract.CLI_USAGE and "bare.yaml names none for the container trainer" in refused.err


# --- Scripts ----------------------------------------------------------------------------------------------------------


def test_a_script_takes_its_code_along_and_the_pod_unpacks_it(
    user: User, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = [
        "--image",
        "torch:1",
        "--workers",
        "2",
        "--gpus",
        "8",
        "--cpu",
        "4",
        "--memory",
        "8Gi",
        "--name",
        "Digits",
        "--volume",
        "claim:/data",
        "--storage",
        "/data/runs",
        "--restarts",
        "5",
    ]
    shown = user.tj("submit", "train.py", *options, script_args=("--lr", "$HOME"))
    assert shown.code == contract.CLI_OK, shown.err
    name = shown.out.split()[0].split("/")[1]
    spec = user.get(name)["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "train.py", "--lr", "$$HOME"]
    assert (container["image"], container["workingDir"]) == ("torch:1", carry.CODE_DIR)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "cpu": "4", "memory": "8Gi"}
    assert (spec["workers"], spec["checkpoint"]["storage"], spec["failurePolicy"]["maxFailures"]) == (
        2,
        "/data/runs",
        5,
    )
    assert "2 workers with 8 processes each" in shown.err
    code = next(found for found in user.core("configmaps") if "-code-" in found["metadata"]["name"])
    assert code["metadata"]["ownerReferences"][0]["uid"] == user.get(name)["metadata"]["uid"]
    init = spec["template"]["spec"]["initContainers"][0]
    assert init["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"}
    # What the init container does, done here: it gives the script what it needs, and nothing that was left out.
    pod = tmp_path_factory.mktemp("pod")
    (pod / "code").mkdir()
    (pod / "code.tar.gz").write_bytes(base64.b64decode(code["binaryData"][carry.ARCHIVE]))
    command = [word.replace("$$", "$").replace(carry.ARCHIVE_DIR, str(pod)) for word in init["command"][:-1]]
    subprocess.run([*command, str(pod / "code")], check=True, timeout=HANG_S)
    assert sorted(os.listdir(pod / "code")) == [".tjignore", "helper.py", "train.py"]
    done = subprocess.run(
        ["python3", "train.py", "a"], cwd=pod / "code", capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout == "helped ['a']\n"


def test_deleting_the_job_takes_the_code_with_it(user: User, folder: Path) -> None:
    user.tj("submit", "train.py", "--image", "x", "--name", "gone")
    assert any("-code-" in found["metadata"]["name"] for found in user.core("configmaps"))
    user.tj("delete", "gone")
    until(lambda: not any("-code-" in found["metadata"]["name"] for found in user.core("configmaps")))


def test_a_refused_job_leaves_no_code_behind(user: User, folder: Path) -> None:
    user.create({"metadata.name": "taken"})
    assert user.tj("submit", "train.py", "--image", "x", "--name", "taken").code == contract.CLI_ERROR
    assert not any("-code-" in found["metadata"]["name"] for found in user.core("configmaps"))


def test_code_that_is_too_large_is_refused_with_what_weighs(user: User, folder: Path) -> None:
    (folder / "weights.bin").write_bytes(random.Random(0).randbytes(900_000))
    refused = user.tj("submit", "train.py", "--image", "x")
    assert refused.code == contract.CLI_ERROR
    assert "weights.bin (879 KiB)" in refused.err
    assert ".tjignore" in refused.err.splitlines()[-1]


def test_code_that_is_too_large_goes_to_a_storage_that_is_here_too(
    user: User, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    nodes = tmp_path_factory.mktemp("nfs")
    (folder / "weights.bin").write_bytes(random.Random(0).randbytes(900_000))
    shown = user.tj(
        "submit", "train.py", "--image", "x", "--name", "big", "--volume", f"{nodes}:/data", "--storage", "/data/runs"
    )
    assert shown.code == contract.CLI_OK, shown.err
    template = user.get("big")["spec"]["template"]["spec"]
    inside = template["initContainers"][0]["command"][-2]
    assert inside.startswith(f"/data/runs/{user.namespace}/big/code/")
    assert (nodes / inside.removeprefix("/data/")).stat().st_size > 800_000
    assert template["initContainers"][0]["volumeMounts"][1]["mountPath"] == "/data"


def test_how_checkpoints_are_stored_reaches_the_job(user: User, folder: Path) -> None:
    store = [
        "--s3-endpoint",
        "https://s3.storage:9000",
        "--s3-region",
        "eu-west-3",
        "--s3-secret",
        "keys",
        "--s3-ca-config-map",
        "store-ca",
    ]
    bucket = ["--storage", "s3://bucket/jobs", *store]
    script = user.tj(
        "submit", "train.py", "--image", "x", "--name", "a", *bucket, "--strict", "--on-upload-failure", "Fail"
    )
    assert script.code == contract.CLI_OK, script.err
    s3_settings = {
        "endpointURL": "https://s3.storage:9000",
        "region": "eu-west-3",
        "credentialsSecret": "keys",
        "caConfigMap": "store-ca",
    }
    said = user.get("a")["spec"]["checkpoint"]
    assert {name: said.get(name) for name in ("s3", "strict", "onUploadFailure")} == {
        "s3": s3_settings,
        "strict": True,
        "onUploadFailure": "Fail",
    }
    written = document(
        {
            "metadata.name": "b",
            "spec.checkpoint": {"storage": "s3://bucket/jobs", "s3": {"region": "eu-west-1"}, "strict": True},
        }
    )
    file = user.tj("submit", "-f", manifest(folder, written), *store, "--no-strict", "--on-upload-failure", "Fail")
    assert file.code == contract.CLI_OK, file.err
    said = user.get("b")["spec"]["checkpoint"]
    assert {name: said.get(name) for name in ("s3", "strict", "onUploadFailure")} == {
        "s3": s3_settings,
        "strict": False,
        "onUploadFailure": "Fail",
    }


def in_bucket(user: User, uri: str, name: str = "big") -> Said:
    words = [
        "--image",
        "x",
        "--name",
        name,
        "--storage",
        uri,
        "--s3-endpoint",
        "http://s3.storage:9000",
        "--s3-secret",
        "keys",
        "--s3-region",
        "eu-west-3",
    ]
    return user.tj("submit", "train.py", *words)


@pytest.mark.slow
def test_code_that_is_too_large_goes_to_the_bucket_of_the_job(
    user: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "weights.bin").write_bytes(random.Random(0).randbytes(900_000))
    s3.use(monkeypatch, s3.endpoint())
    uri = s3.fresh_uri().replace("a folder ü/job", "jobs")
    shown = in_bucket(user, uri)
    assert shown.code == contract.CLI_OK, shown.err
    spec = user.get("big")["spec"]
    assert spec["checkpoint"]["s3"] == {
        "endpointURL": "http://s3.storage:9000",
        "credentialsSecret": "keys",
        "region": "eu-west-3",
    }
    container = spec["template"]["spec"]["containers"][0]
    key = next(entry["value"] for entry in container["env"] if entry["name"] == contract.ENV_CODE)
    assert container["workingDir"] == carry.CODE_DIR and "initContainers" not in spec["template"]["spec"]
    store = open_store(f"{uri}/{user.namespace}/big")
    assert f"in {store.uri(key)}" in shown.err
    (folder / "pod").mkdir()
    code.unpack(store, key, str(folder / "pod"))
    assert (folder / "pod" / "weights.bin").read_bytes() == (folder / "weights.bin").read_bytes()


@pytest.mark.slow
def test_a_bucket_that_cannot_be_reached_from_here_is_said_with_the_ways_out(
    user: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "weights.bin").write_bytes(random.Random(0).randbytes(900_000))
    s3.use(monkeypatch, s3.endpoint(), timeout_s=9.0)  # a client of its own: one that has found keys keeps them
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keyless = in_bucket(user, "s3://not-there/jobs")
    assert (
        "cannot be left in the job's storage" in keyless.err
        and "kubectl get secret keys" in keyless.err.splitlines()[-1]
    )
    s3.use(monkeypatch, s3.endpoint())
    missing = in_bucket(user, "s3://not-there/jobs")
    assert missing.code == contract.CLI_ERROR and "there is no bucket not-there" in missing.err
    assert ".tjignore" in missing.err.splitlines()[-1]
    assert user.server.request("GET", user.path())["items"] == []


def test_a_dry_run_prints_what_kubectl_would_take(user: User, folder: Path) -> None:
    shown = user.tj("submit", "train.py", "--image", "x", "--dry-run")
    assert [found["kind"] for found in yaml.safe_load_all(shown.out)] == ["ConfigMap", "TrainJob"]
    assert user.server.request("GET", user.path())["items"] == []
    assert user.server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=shown.out).returncode == 0


def test_waiting_ends_with_the_job_s_code(user: User, folder: Path) -> None:
    def end() -> None:
        until(lambda: user.server.request("GET", user.path())["items"])
        user.status(
            "digits",
            phase="Failed",
            conditions=[condition("Failed", "True", "DeadlineExceeded", "it was active for too long")],
        )

    with user.meanwhile(end):
        shown = user.tj("submit", "-f", manifest(folder, document()), "--wait", "--plain")
    assert shown.code == contract.CLI_JOB_FAILED
    assert "it was active for too long" in shown.err


def test_the_printed_commands_can_be_typed(user: User, folder: Path) -> None:
    shown = user.tj("submit", "-f", manifest(folder, document()))
    command = shown.err[shown.err.index("`tj status") + 1 :].split("`")[0]
    assert user.tj(*shlex.split(command)[1:]).code == contract.CLI_OK
