"""The chart gives the operator what its table of rights says, and nothing else; people get what their role's name
says.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from support import chart
from support.chart import Object, kinds, only, render
from trainjob_api import contract
from trainjob_operator.k8s.rights import RULES, Where

pytestmark = pytest.mark.timeout(900)  # helm may have to be built first

Right = tuple[str, str, str, str]
"""(API group, resource, verb, name or "")"""
NAMES = {
    "service": contract.COORDINATOR_SERVICE,
    "secret": contract.COORDINATOR_SECRET,
    "lease": contract.LEASE_NAME,
    "claim": contract.CLAIM_LEASE,
}
NAMESPACED = ("scope=namespaces", "namespaces={team-a,team-b}")


def granted(role: Object) -> set[Right]:
    return {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def needed(*places: Where) -> set[Right]:
    rules = [rule for rule in RULES if rule.where in places]
    return {
        (rule.group, rule.resource, verb, NAMES[rule.named] if rule.named else "")
        for rule in rules
        for verb in rule.verbs
    }


def bound(objects: Iterable[Object], kind: str, namespace: str | None) -> list[tuple[str, str]]:
    """(kind, name) of the roles that the operator's account holds by bindings of this kind there."""
    found = []
    for each in objects:
        if each["kind"] == kind and each["metadata"].get("namespace") == namespace:
            assert each["subjects"] == [
                {"kind": "ServiceAccount", "name": "trainjob-operator", "namespace": chart.NAMESPACE}
            ]
            found.append((each["roleRef"]["kind"], each["roleRef"]["name"]))
    return found


def test_cluster_wide_rights_are_exactly_the_operators() -> None:
    objects = render()
    assert granted(only(objects, "ClusterRole", "trainjob-operator")) == needed(Where.JOBS, Where.CLUSTER)
    assert bound(objects, "ClusterRoleBinding", None) == [("ClusterRole", "trainjob-operator")]


@pytest.mark.parametrize("settings", [(), NAMESPACED], ids=["cluster", "namespaces"])
def test_rights_in_its_own_namespace_are_exactly_the_operators(settings: tuple[str, ...]) -> None:
    objects = render(*settings)
    assert granted(only(objects, "Role", "trainjob-operator")) == needed(Where.OWN)
    assert bound(objects, "RoleBinding", chart.NAMESPACE) == [("Role", "trainjob-operator")]


def test_a_namespaced_operator_has_rights_in_its_namespaces_alone() -> None:
    objects = render(*NAMESPACED)
    roles = {
        each["metadata"]["namespace"]: each
        for each in objects
        if each["kind"] == "Role" and each["metadata"]["name"] == "trainjob-operator-jobs"
    }
    assert roles.keys() == {"team-a", "team-b"}
    for namespace, role in roles.items():
        assert granted(role) == needed(Where.JOBS)
        assert bound(objects, "RoleBinding", namespace) == [("Role", "trainjob-operator-jobs")]
    assert "ClusterRoleBinding" not in kinds(objects)
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"} == {
        "trainjob-viewer",
        "trainjob-editor",
    }


def test_the_operators_own_namespace_can_be_one_that_it_serves() -> None:
    objects = render("scope=namespaces", f"namespaces={{{chart.NAMESPACE}}}")
    assert bound(objects, "RoleBinding", chart.NAMESPACE) == [
        ("Role", "trainjob-operator-jobs"),
        ("Role", "trainjob-operator"),
    ]


def test_somebody_without_rights_on_the_cluster_can_install() -> None:
    objects = render(*NAMESPACED, "crds.install=false", "userRoles.create=false")
    assert not kinds(objects) & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def test_no_rule_has_a_wildcard() -> None:
    for settings in ((), NAMESPACED):
        for role in render(*settings):
            if role["kind"] in ("Role", "ClusterRole"):
                assert not any("*" in right for right in granted(role)), role["metadata"]["name"]


def test_viewers_only_look() -> None:
    viewer = granted(only(render(), "ClusterRole", "trainjob-viewer"))
    assert {verb for _, _, verb, _ in viewer} == {"get", "list", "watch"}
    assert (contract.GROUP, contract.PLURAL, "watch", "") in viewer and ("", "pods/log", "get", "") in viewer
    assert not any(resource in ("secrets", "configmaps") for _, resource, _, _ in viewer)


def test_editors_change_jobs_and_never_their_status() -> None:
    objects = render()
    editor = granted(only(objects, "ClusterRole", "trainjob-editor"))
    assert granted(only(objects, "ClusterRole", "trainjob-viewer")) <= editor
    for verb in ("create", "update", "patch", "delete", "deletecollection"):
        assert (contract.GROUP, contract.PLURAL, verb, "") in editor
    assert (contract.GROUP, f"{contract.PLURAL}/scale", "patch", "") in editor
    assert {verb for _, resource, verb, _ in editor if resource == f"{contract.PLURAL}/status"} == {"get"}


def test_kubernetes_own_roles_take_them_in() -> None:
    def labels(name: str, *settings: str) -> set[str]:
        found = only(render(*settings), "ClusterRole", name)["metadata"]["labels"]
        return {label.rsplit("/", 1)[1] for label in found if "aggregate-to" in label}

    assert labels("trainjob-viewer") == {"aggregate-to-view", "aggregate-to-edit", "aggregate-to-admin"}
    assert labels("trainjob-editor") == {"aggregate-to-edit", "aggregate-to-admin"}
    assert labels("trainjob-editor", "userRoles.aggregate=false") == set()
    assert "trainjob-viewer" not in {each["metadata"]["name"] for each in render("userRoles.create=false")}
