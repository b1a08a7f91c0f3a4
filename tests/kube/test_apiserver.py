"""The test's own control plane: nothing is left of it however its owner ends, and its tokens are real ones."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver, why_not
from support.clusters import plain_pod
from support.patience import HANG_S

pytestmark = on_apiserver

TESTS = Path(__file__).parents[1]
OWNER = (
    "from cluster.apiserver import ApiServer; import time; server = ApiServer(controllers=False); "
    "print(server.folder, flush=True); time.sleep(600)"
)


def using(folder: str) -> list[str]:
    """Command lines that name the folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it ended meanwhile
    return [line for line in lines if folder in line]


@pytest.mark.slow
def test_its_processes_end_with_a_killed_owner(apiserver: ApiServer) -> None:
    if reason := why_not():
        pytest.skip(reason)
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert owner.stdout is not None
        folder = owner.stdout.readline().strip()
        assert len(using(folder)) == 2, "etcd and kube-apiserver"
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    deadline = time.monotonic() + HANG_S
    while using(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert using(folder) == []
    ApiServer.remove_left_behind()
    assert not Path(folder).exists() and apiserver.folder.exists()


def test_a_crd_that_was_installed_is_described(apiserver: ApiServer) -> None:
    names = {"plural": "marks", "singular": "mark", "kind": "Mark", "listKind": "MarkList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    spec = {"group": "marks.example", "scope": "Namespaced", "names": names, "versions": [version]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    apiserver.install_crd({**head, "metadata": {"name": "marks.marks.example"}, "spec": spec})
    try:
        assert apiserver.request("GET", "/openapi/v3/apis/marks.example/v1")["components"]["schemas"]
    finally:
        apiserver.request("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/marks.marks.example")


def test_a_pods_token_is_reviewed(apiserver: ApiServer, api_namespace: str) -> None:
    pod = apiserver.request("POST", f"/api/v1/namespaces/{api_namespace}/pods", plain_pod("digits-0"))
    token = apiserver.service_account_token(api_namespace, "default", audience="trainjob-test", pod=pod)
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["trainjob-test"]},
    }
    status = apiserver.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert status["authenticated"] and status["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [
        pod["metadata"]["uid"]
    ]
    review["spec"]["audiences"] = ["another"]  # type: ignore[index]
    assert not apiserver.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)["status"].get(
        "authenticated"
    )


def test_tokens_are_signed_by_published_keys(apiserver: ApiServer, api_namespace: str) -> None:
    token = apiserver.service_account_token(api_namespace, "default")
    head = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
    keys = apiserver.request("GET", "/openid/v1/jwks")["keys"]
    assert head["alg"] == "RS256" and head["kid"] in {key["kid"] for key in keys}
