"""What makes a start impossible is said in one line each, and the process ends with 1."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.apiserver import CRD_FILE, ApiServer
from cluster.ports import free_port
from support.apiserver import on_apiserver, why_not
from support.operators import Installation, Replica, grant, installed
from trainjob_api import contract

pytestmark = [on_apiserver, pytest.mark.slow]


@pytest.fixture(scope="module")
def bare_server() -> Iterator[ApiServer]:
    """An API server that knows no TrainJobs, to begin with."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ApiServer(controllers=False) as server:
        yield server


def the_only_line(replica: Replica) -> str:
    assert replica.ended() == 1
    (line,) = replica.lines()
    assert line["level"] == "error"
    assert "error" not in line, "no traceback"
    return str(line["message"])


def test_without_the_crd(bare_server: ApiServer, tmp_path: Path) -> None:
    bare_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": "op"}})
    replica = Installation(bare_server, "op", tmp_path).start("op-a")
    line = the_only_line(replica)
    assert f"{contract.PLURAL}.{contract.GROUP}" in line and "crds/" in line


def test_with_the_crd_of_an_older_operator(bare_server: ApiServer, tmp_path: Path) -> None:
    crd = yaml.safe_load(CRD_FILE.read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["history"]
    bare_server.install_crd(crd)
    replica = Installation(bare_server, "default", tmp_path).start("op-a")
    line = the_only_line(replica)
    assert "older than this operator" in line and "status.history" in line and "crds/" in line


def test_without_a_right(installation: Installation, api_namespace: str) -> None:
    kubeconfig = grant(installation, api_namespace, without=("patch", "trainjobs/status"))
    line = the_only_line(installation.start("op-a", "--namespace", api_namespace, kubeconfig=kubeconfig))
    assert line.startswith(f"missing right: patch trainjobs/status.{contract.GROUP} in namespace {api_namespace}")


def test_without_any_right_each_is_a_line(installation: Installation, api_namespace: str) -> None:
    server = installation.server
    server.request(
        "POST", f"/api/v1/namespaces/{installation.namespace}/serviceaccounts", {"metadata": {"name": "nobody"}}
    )
    replica = installation.start("op-a", kubeconfig=server.service_account_kubeconfig(installation.namespace, "nobody"))
    assert replica.ended() == 1
    messages = replica.messages()
    assert len(messages) > 15
    assert all(message.startswith("missing right: ") for message in messages)


def test_with_a_token_that_is_not_accepted(installation: Installation) -> None:
    line = the_only_line(installation.start("op-a", kubeconfig=installation.server.kubeconfig_for("wrong", "wrong")))
    assert "401" in line


def test_without_an_api_server(tmp_path: Path) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    replica = _nowhere(tmp_path, path).start("op-a")
    line = the_only_line(replica)
    assert "no connection to the API server https://127.0.0.1:" in line


def test_with_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    replica = _nowhere(tmp_path, tmp_path / "missing").start("op-a")
    assert "kubeconfig" in the_only_line(replica)


def test_without_the_service(apiserver: ApiServer, api_namespace: str, tmp_path: Path) -> None:
    replica = Installation(apiserver, api_namespace, tmp_path).start("op-a", "--namespace", api_namespace)
    assert replica.ended() == 1
    last = replica.lines()[-1]
    assert contract.COORDINATOR_SERVICE in last["message"] and "error" not in last
    with installed(apiserver, f"{api_namespace}-2", tmp_path) as mended:
        mended.start("op-a", "--namespace", api_namespace).says("leading:")


def test_with_a_port_that_is_taken(installation: Installation, api_namespace: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        replica = installation.start("op-a", "--metrics-port", str(taken.getsockname()[1]))
        assert "--metrics-port" in the_only_line(replica)


class _Nowhere:
    """Stands for a server in an Installation whose operator reaches none."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig


def _nowhere(folder: Path, kubeconfig: Path) -> Installation:
    return Installation(_Nowhere(kubeconfig), "op", folder)  # type: ignore[arg-type]
