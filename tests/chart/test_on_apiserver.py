"""The chart on a real API server: everything is admitted, rights are enough and not more, and a release comes,
changes and goes.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from cluster.apiserver import ApiServer
from support import chart
from support.apiserver import on_apiserver
from support.chart import operator_pod, render
from support.operators import eventually
from support.trainjobs import document
from trainjob_api import contract
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.rights import missing_rights, needed_rights

pytestmark = [on_apiserver, pytest.mark.timeout(900)]

NAMES = {
    "service": contract.COORDINATOR_SERVICE,
    "secret": contract.COORDINATOR_SECRET,
    "lease": contract.LEASE_NAME,
    "claim": contract.CLAIM_LEASE,
}
ACCOUNT = "trainjob-operator"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{contract.PLURAL}.{contract.GROUP}"


class Releases:
    """Installs the chart, and takes away what a test leaves."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self._installed: set[str] = set()

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        return chart.run_helm(*words, "--kubeconfig", str(self.server.kubeconfig))

    def upgrade(self, namespace: str, *settings: str, adopt_crd: bool = True) -> str:
        """`helm upgrade --install`; what it says. The server has the CRD already, so it is adopted or left alone."""
        words = [word for setting in settings for word in ("--set", setting)]
        words += ["--take-ownership"] if adopt_crd else ["--set", "crds.install=false"]
        done = self.helm("upgrade", "--install", chart.RELEASE, str(chart.CHART), "--namespace", namespace, *words)
        assert done.returncode == 0, done.stderr
        self._installed.add(namespace)
        self.server.settle_rights()
        return done.stdout

    def uninstall(self, namespace: str) -> str:
        self._installed.discard(namespace)
        done = self.helm("uninstall", chart.RELEASE, "--namespace", namespace)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def close(self) -> None:
        for namespace in list(self._installed):
            self.uninstall(namespace)


@pytest.fixture
def releases(apiserver: ApiServer) -> Iterator[Releases]:
    chart.helm()
    releases = Releases(apiserver)
    yield releases
    releases.close()


def missing(server: ApiServer, own: str, *served: str) -> list[str]:
    """What the operator's account may not do of what it needs."""

    async def ask() -> list[str]:
        api = await Api.connect(kubeconfig=str(server.service_account_kubeconfig(own, ACCOUNT)))
        try:
            return [right.missing() for right in await missing_rights(api, needed_rights(served, own, NAMES))]
        finally:
            await api.close()

    return asyncio.run(ask())


def allowed(server: ApiServer, user: str, verb: str, what: str, namespace: str, group: str = contract.GROUP) -> bool:
    return server.allowed(user, verb, what, namespace, group)


def bind(server: ApiServer, namespace: str, user: str, role: str) -> None:
    server.kubectl(
        "-n", namespace, "create", "rolebinding", f"{user}-{role}", f"--clusterrole={role}", f"--user={user}"
    )
    server.settle_rights()


@pytest.mark.parametrize(
    "settings",
    [
        ("networkPolicy.enabled=true", "priorityClass.create=true"),
        ("networkPolicy.enabled=true", "scope=namespaces", "namespaces={default}"),
        (
            "replicas=3",
            "topologySpreadConstraints[0].maxSkew=1",
            "topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone",
            "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
            "topologySpreadConstraints[0].matchLabelKeys={pod-template-hash}",
        ),
    ],
    ids=["cluster", "namespaces", "three over zones"],
)
def test_the_api_server_takes_every_object_and_knows_every_field(
    apiserver: ApiServer, settings: tuple[str, ...]
) -> None:
    apiserver.kubectl("create", "namespace", chart.NAMESPACE, check=False)
    text = yaml.safe_dump_all(render(*settings))
    done = apiserver.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
    )
    assert done.stdout.count("serverside-applied") == len(render(*settings))


def test_the_operators_pod_is_admitted_where_pod_security_is_restricted(
    apiserver: ApiServer, releases: Releases, api_namespace: str
) -> None:
    apiserver.kubectl("label", "namespace", api_namespace, "pod-security.kubernetes.io/enforce=restricted")
    releases.upgrade(api_namespace)
    template = operator_pod(render())
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "operator-0"},
        "spec": template["spec"],
    }
    admitted = apiserver.request(
        "POST", f"/api/v1/namespaces/{api_namespace}/pods?dryRun=All&fieldValidation=Strict", pod
    )
    assert admitted["spec"]["serviceAccountName"] == ACCOUNT


def test_cluster_wide_rights_are_enough_and_not_more(
    apiserver: ApiServer, releases: Releases, api_namespace: str
) -> None:
    releases.upgrade(api_namespace)
    assert missing(apiserver, api_namespace) == []
    account = f"system:serviceaccount:{api_namespace}:{ACCOUNT}"
    assert allowed(apiserver, account, "create", "pods", "default", group="")
    for verb, what, group in [
        ("list", "secrets", ""),
        ("get", "secrets", ""),
        ("create", "pods/exec", ""),
        ("update", contract.PLURAL, contract.GROUP),
        ("patch", contract.PLURAL, contract.GROUP),
        ("delete", "services", ""),
        ("impersonate", "users", ""),
        ("create", "rolebindings", "rbac.authorization.k8s.io"),
    ]:
        assert not allowed(apiserver, account, verb, what, "default", group), f"{verb} {what}"


def test_namespaced_rights_end_at_the_namespaces(apiserver: ApiServer, releases: Releases, api_namespace: str) -> None:
    served = f"{api_namespace}-jobs"
    apiserver.create_namespace(served)
    releases.upgrade(api_namespace, "scope=namespaces", f"namespaces={{{served}}}", adopt_crd=False)
    assert missing(apiserver, api_namespace, served) == []
    account = f"system:serviceaccount:{api_namespace}:{ACCOUNT}"
    for namespace in ("default", api_namespace, ""):
        assert not allowed(apiserver, account, "list", contract.PLURAL, namespace)
        assert not allowed(apiserver, account, "create", "pods", namespace, group="")
    assert not allowed(apiserver, account, "create", "tokenreviews", "", group="authentication.k8s.io")


def test_a_missing_right_is_named(apiserver: ApiServer, releases: Releases, api_namespace: str) -> None:
    """What the operator says at its start if somebody trims its role."""
    releases.upgrade(api_namespace)
    removal = '[{"op": "remove", "path": "/rules/0"}]'
    apiserver.kubectl("patch", "clusterrole", ACCOUNT, "--type=json", "-p", removal)
    assert any(
        f"list {contract.PLURAL}.{contract.GROUP} cluster-wide" in line for line in missing(apiserver, api_namespace)
    )


def test_viewers_view_and_editors_edit(apiserver: ApiServer, releases: Releases, api_namespace: str) -> None:
    releases.upgrade(api_namespace)
    apiserver.create_namespace(f"{api_namespace}-people")
    bind(apiserver, f"{api_namespace}-people", "vera", "trainjob-viewer")
    bind(apiserver, f"{api_namespace}-people", "edda", "trainjob-editor")
    where = f"{api_namespace}-people"
    for user in ("vera", "edda"):
        for verb, what, group in [
            ("get", contract.PLURAL, contract.GROUP),
            ("watch", contract.PLURAL, contract.GROUP),
            ("get", "pods/log", ""),
        ]:
            assert allowed(apiserver, user, verb, what, where, group), f"{user}: {verb} {what}"
        assert not allowed(apiserver, user, "patch", f"{contract.PLURAL}/status", where)
        assert not allowed(apiserver, user, "list", contract.PLURAL, "default")
        assert not allowed(apiserver, user, "get", "secrets", where, "")
    for verb in ("create", "update", "patch", "delete"):
        assert not allowed(apiserver, "vera", verb, contract.PLURAL, where)
        assert allowed(apiserver, "edda", verb, contract.PLURAL, where)
    assert not allowed(apiserver, "vera", "patch", f"{contract.PLURAL}/scale", where)
    assert allowed(apiserver, "edda", "patch", f"{contract.PLURAL}/scale", where)


def test_kubernetes_own_view_role_shows_jobs(apiserver: ApiServer, releases: Releases, api_namespace: str) -> None:
    releases.upgrade(api_namespace)
    bind(apiserver, api_namespace, "vito", "view")
    # A controller writes what is added into the role.
    eventually(lambda: allowed(apiserver, "vito", "list", contract.PLURAL, api_namespace), "the role shows jobs")
    assert not allowed(apiserver, "vito", "create", contract.PLURAL, api_namespace)


def test_a_release_comes_changes_and_goes_and_jobs_stay(
    apiserver: ApiServer, releases: Releases, api_namespace: str
) -> None:
    said = releases.upgrade(api_namespace)
    assert "kubectl get tj -w" in said
    job = document({"metadata.name": "survivor"})
    uid = apiserver.request("POST", f"/apis/{contract.API_VERSION}/namespaces/{api_namespace}/{contract.PLURAL}", job)[
        "metadata"
    ]["uid"]
    said = releases.upgrade(api_namespace, "replicas=1", "logs.level=debug")
    assert "Running jobs go on" in said
    deployment = apiserver.request("GET", f"/apis/apps/v1/namespaces/{api_namespace}/deployments/trainjob-operator")
    assert deployment["spec"]["replicas"] == 1
    assert (
        f"kept due to the resource policy:\n[CustomResourceDefinition] {contract.PLURAL}.{contract.GROUP}"
        in releases.uninstall(api_namespace)
    )
    left = apiserver.kubectl(
        "-n",
        api_namespace,
        "get",
        "deployments,services,roles,rolebindings,serviceaccounts,poddisruptionbudgets",
        "-o",
        "name",
    ).stdout
    assert left.split() == ["serviceaccount/default"]
    assert apiserver.request("GET", CRD_PATH)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    releases.upgrade(api_namespace)
    there = apiserver.request(
        "GET", f"/apis/{contract.API_VERSION}/namespaces/{api_namespace}/{contract.PLURAL}/survivor"
    )
    assert there["metadata"]["uid"] == uid


def test_a_second_installation_is_refused(apiserver: ApiServer, releases: Releases, api_namespace: str) -> None:
    """Two operators over the same jobs would fight."""
    releases.upgrade(api_namespace)
    other = f"{api_namespace}-other"
    apiserver.create_namespace(other)
    done = releases.helm(
        "install", chart.RELEASE, str(chart.CHART), "--namespace", other, "--set", "crds.install=false"
    )
    assert done.returncode != 0 and "trainjob-operator" in done.stderr and "exists" in done.stderr
    releases.helm("uninstall", chart.RELEASE, "--namespace", other)
