"""The table of rights: what a cluster-wide and a namespaced installation ask for, and the line for a missing one."""

from __future__ import annotations

import asyncio
from typing import Any

from trainjob_operator.cluster import Manifest
from trainjob_operator.k8s.rights import RULES, Also, Right, Where, may_also_watch, missing_rights, needed_rights

NAMES = {"lease": "the-lease", "secret": "the-secret", "service": "the-service", "claim": "the-claim"}


class _Judge:
    """Answers access reviews: everything is allowed but what is denied."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied
        self.asked: list[dict[str, Any]] = []

    async def create(self, path: str, body: Manifest) -> Manifest:
        attributes = body["spec"]["resourceAttributes"]
        self.asked.append(attributes)
        what = f"{attributes['verb']} {attributes['resource']}" + (
            f"/{attributes['subresource']}" if "subresource" in attributes else ""
        )
        return {**body, "status": {"allowed": what not in self.denied}}


def test_cluster_wide_asks_for_all_namespaces_and_tokenreviews() -> None:
    rights = needed_rights((), "system", NAMES)
    assert {right.namespace for right in rights if right.resource == "pods"} == {""}
    assert any(right.resource == "tokenreviews" for right in rights)


def test_namespaced_asks_for_each_namespace_and_nothing_cluster_wide() -> None:
    rights = needed_rights(("a", "b"), "system", NAMES)
    assert {right.namespace for right in rights if right.resource == "pods"} == {"a", "b"}
    assert all(right.namespace for right in rights)


def test_what_can_be_named_is_asked_for_by_name() -> None:
    rights = needed_rights((), "system", NAMES)
    assert {(right.verb, right.name) for right in rights if right.resource == "leases"} == {
        ("create", ""),
        ("get", "the-lease"),
        ("update", "the-lease"),
        ("get", "the-claim"),
        ("update", "the-claim"),
    }
    assert {(right.verb, right.name) for right in rights if right.resource == "secrets"} == {
        ("create", ""),
        ("get", "the-secret"),
    }


def test_optional_rights_are_not_asked_for() -> None:
    assert any(rule.optional for rule in RULES)
    assert not any(right.resource == "nodes" for right in needed_rights((), "system", NAMES))


def test_nothing_dangerous_is_in_the_table() -> None:
    for rule in RULES:
        assert "*" not in (*rule.verbs, rule.resource, rule.group)
        assert "deletecollection" not in rule.verbs
        if rule.resource == "secrets":
            assert rule.where is Where.OWN


def test_every_denied_right_is_found_and_said_in_one_line() -> None:
    judge = _Judge("patch trainjobs/status", "create pods")
    rights = needed_rights(("team",), "system", NAMES)
    missing = asyncio.run(missing_rights(judge, rights))
    assert len(judge.asked) == len(rights)
    assert sorted((right.verb, right.resource) for right in missing) == [
        ("create", "pods"),
        ("patch", "trainjobs/status"),
    ]
    for right in missing:
        assert "\n" not in right.missing()
        assert "namespace team" in right.missing()


def test_what_may_be_watched_beside_jobs_and_pods_is_asked_for_where_the_jobs_are() -> None:
    assert asyncio.run(may_also_watch(_Judge(), ())) == {Also.NODES, Also.SERVICES}
    assert asyncio.run(may_also_watch(_Judge("watch services"), ())) == {Also.NODES}
    judge = _Judge()
    assert asyncio.run(may_also_watch(judge, ("a", "b"))) == {Also.SERVICES}, "nodes are nobody's in a namespace"
    assert {(asked["verb"], asked["resource"], asked["namespace"]) for asked in judge.asked} == {
        (verb, "services", namespace) for verb in ("list", "watch") for namespace in ("a", "b")
    }


def test_a_named_right_is_said_with_its_name() -> None:
    line = Right(
        verb="get", group="", resource="secrets", namespace="system", name="the-secret", why="the CA"
    ).missing()
    assert "get secrets the-secret in namespace system" in line
