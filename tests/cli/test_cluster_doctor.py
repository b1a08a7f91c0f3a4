"""`tj doctor`: each thing that is missing is found, with the command that mends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.cluster_cli import User
from trainjob.cli.main import main
from trainjob_api import contract

pytestmark = on_apiserver

DEPLOYMENT = "/apis/apps/v1/namespaces/{}/deployments/trainjob-operator"


def findings(user: User, operator_namespace: str) -> dict[str, dict[str, str]]:
    shown = user.tj("doctor", "--operator-namespace", operator_namespace, "-o", "json")
    return {found["check"]: found for found in json.loads(shown.out)}


@pytest.fixture
def installation(apiserver: ApiServer, user: User) -> Iterator[str]:
    """A namespace with everything that an installation has, as the API server sees it."""
    name = f"system-{user.namespace}"
    apiserver.create_namespace(name)
    labels = {"app.kubernetes.io/name": "trainjob"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "operator", "image": "trainjob-operator:1"}]},
    }
    deployment = {
        "metadata": {"name": "trainjob-operator", "labels": labels},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }
    apiserver.request("POST", f"/apis/apps/v1/namespaces/{name}/deployments", deployment)
    apiserver.request(
        "PATCH",
        f"/apis/apps/v1/namespaces/{name}/deployments/trainjob-operator/status",
        {"status": {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}},
    )
    lease = {"metadata": {"name": contract.LEASE_NAME}, "spec": {"holderIdentity": "operator-1", "renewTime": stamp(0)}}
    apiserver.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases", lease)
    apiserver.request(
        "POST",
        f"/api/v1/namespaces/{name}/services",
        {"metadata": {"name": contract.COORDINATOR_SERVICE}, "spec": {"ports": [{"port": 8443}]}},
    )
    slice_ = {
        "metadata": {
            "name": contract.COORDINATOR_SERVICE,
            "labels": {"kubernetes.io/service-name": contract.COORDINATOR_SERVICE},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.7"]}],
    }
    apiserver.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{name}/endpointslices", slice_)
    yield name
    # A doctor looks for an operator everywhere: the next test must not find this one.
    apiserver.request("DELETE", DEPLOYMENT.format(name))


def stamp(seconds_ago: float) -> str:
    return (
        (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def test_a_good_installation(user: User, installation: str) -> None:
    found = findings(user, installation)
    assert {check for check, finding in found.items() if finding["level"] == "FAIL"} == set()
    assert found["leader"]["found"].startswith("operator-1, renewed")
    assert "10.0.0.7" in found["coordinator"]["found"]
    assert "may do all that `tj` does" in found["rights"]["found"]
    shown = user.tj("doctor", "--operator-namespace", installation)
    assert shown.code == contract.CLI_OK
    assert "ReadWriteMany" in shown.err  # a warning, with what mends it


def test_no_installation(user: User) -> None:
    shown = user.tj("doctor", "--operator-namespace", "nowhere")
    assert shown.code == contract.CLI_ERROR
    assert "next: operator: helm upgrade --install trainjob" in shown.err
    assert "no operator has ever led" in shown.out


def test_an_installation_elsewhere_is_found_and_no_second_one_advised(user: User, installation: str) -> None:
    found = findings(user, "trainjob-system")
    assert found["operator"]["found"] == f"trainjob-operator in {installation}: 2 of 2 ready"
    assert (found["leader"]["level"], found["coordinator"]["level"]) == ("ok", "ok")
    assert not any("helm upgrade --install" in each["mend"] for each in found.values() if each["check"] != "crd")


def test_an_operator_that_is_scaled_to_nothing_is_told_so(user: User, installation: str) -> None:
    user.server.request("PATCH", DEPLOYMENT.format(installation), {"spec": {"replicas": 0}})
    finding = findings(user, installation)["operator"]
    assert (finding["level"], "is scaled to 0" in finding["found"]) == ("FAIL", True)
    assert finding["mend"] == f"kubectl -n {installation} scale deployment/trainjob-operator --replicas=2"


def test_a_rollout_that_hangs_on_its_image_is_told_with_its_pods_words(user: User, installation: str) -> None:
    user.server.request("PATCH", f"{DEPLOYMENT.format(installation)}/status", {"status": {"updatedReplicas": 0}})
    pod = {
        "metadata": {"name": "operator-new", "labels": {"app.kubernetes.io/name": "trainjob"}},
        "spec": {"containers": [{"name": "operator", "image": "trainjob-operator:2"}]},
    }
    pods = f"/api/v1/namespaces/{installation}/pods"
    user.server.request("POST", pods, pod)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = {"name": "operator", "state": waiting, "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    user.server.request("PATCH", f"{pods}/operator-new/status", {"status": {"containerStatuses": [container]}})
    finding = findings(user, installation)["operator"]
    assert finding["level"] == "warn"
    assert "only 0 of the newest version" in finding["found"]
    assert "ImagePullBackOff: no such image" in finding["found"]
    assert "rollout undo" in finding["mend"]
    user.server.request("PATCH", f"{DEPLOYMENT.format(installation)}/status", {"status": {"readyReplicas": 0}})
    finding = findings(user, installation)["operator"]
    assert finding["level"] == "FAIL" and "logs" not in finding["mend"], "a pod without its image has no log"


@pytest.mark.parametrize(
    ("lease", "said"),
    [
        # Made in the test: the list of tests may be an hour old by then.
        (lambda: {"renewTime": stamp(3600)}, "has not renewed it for 1h"),
        (lambda: {"holderIdentity": None}, "no operator leads"),
    ],
)
def test_nobody_leads(user: User, installation: str, lease: Callable[[], dict[str, object]], said: str) -> None:
    user.server.request(
        "PATCH",
        f"/apis/coordination.k8s.io/v1/namespaces/{installation}/leases/{contract.LEASE_NAME}",
        {"spec": lease()},
    )
    finding = findings(user, installation)["leader"]
    assert finding["level"] == "FAIL"
    assert said in finding["found"]
    assert "logs" in finding["mend"]


def test_a_coordinator_without_an_address(user: User, installation: str) -> None:
    user.server.request(
        "DELETE", f"/apis/discovery.k8s.io/v1/namespaces/{installation}/endpointslices/{contract.COORDINATOR_SERVICE}"
    )
    assert "leads nowhere" in findings(user, installation)["coordinator"]["found"]


def test_a_user_without_rights_learns_which_and_who_can_grant_them(
    user: User, installation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = user.server.service_account_kubeconfig(user.namespace, "default")
    assert (
        main(["doctor", "-n", user.namespace, "--kubeconfig", str(weak), "--operator-namespace", installation])
        == contract.CLI_ERROR
    )
    shown = capsys.readouterr()
    assert "may not, in namespace" in shown.out
    assert f"--clusterrole=trainjob-editor --user=system:serviceaccount:{user.namespace}:default" in shown.err
    assert "you may not look at this" in shown.out


def test_a_claim_that_pods_can_share_is_named(user: User, installation: str) -> None:
    claim = {
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    user.server.request("POST", f"/api/v1/namespaces/{user.namespace}/persistentvolumeclaims", claim)
    finding = findings(user, installation)["storage"]
    assert (finding["level"], "shared" in finding["found"]) == ("ok", True)


def test_a_namespace_that_is_not_there(user: User, installation: str) -> None:
    shown = main(
        [
            "doctor",
            "-n",
            "no-such-namespace",
            "--kubeconfig",
            str(user.server.kubeconfig),
            "--operator-namespace",
            installation,
        ]
    )
    assert shown == contract.CLI_ERROR


def test_no_cluster_at_all_is_the_only_finding(user: User, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(user.server.kubeconfig.read_text().replace(str(user.server.port), "1"))
    assert main(["doctor", "--kubeconfig", str(gone)]) == contract.CLI_ERROR
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2
    assert "kubectl cluster-info" in shown.err
