"""What the operator may do on the API server: one table, asked for at the start, and the base of the chart's roles.

`check_rights` is called by `__main__.py` before anything else is done, so that a missing right is one clear line and
not a job that does not move. The chart's tests compare the rendered roles with RULES.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from trainjob_api import contract
from trainjob_operator.cluster import Manifest

PARALLEL_CHECKS = 8
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Where(Enum):
    """In which namespaces a right is needed."""

    JOBS = "jobs"
    """Where jobs are looked after: each watched namespace, or everywhere."""
    OWN = "own"
    """The operator's own namespace."""
    CLUSTER = "cluster"
    """Not in a namespace; needed by a cluster-wide installation alone."""


class Also(Enum):
    """What is watched beside jobs and their pods, where that is allowed."""

    NODES = "nodes"
    SERVICES = "services"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a role."""

    where: Where
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    named: str | None = None
    """The right is needed for the object that this setting names (`secret`, `lease`, `service`), or for the Lease that
    says who serves a namespace (`claim`); None: for all.
    """
    optional: bool = False
    """Without it something works less well; its absence is no error."""


RULES = (
    Rule(
        where=Where.JOBS,
        group=contract.GROUP,
        resource=contract.PLURAL,
        verbs=("get", "list", "watch"),
        why="jobs are read",
    ),
    Rule(
        where=Where.JOBS,
        group=contract.GROUP,
        resource=contract.PLURAL,
        verbs=("delete",),
        why="jobs are deleted when their TTL is over",
    ),
    Rule(
        where=Where.JOBS,
        group=contract.GROUP,
        resource=f"{contract.PLURAL}/status",
        verbs=("patch",),
        why="status is written",
    ),
    Rule(
        where=Where.JOBS,
        group=contract.GROUP,
        resource=f"{contract.PLURAL}/finalizers",
        verbs=("update",),
        why="pods and Services name the job as their owner",
    ),
    Rule(
        where=Where.JOBS,
        group="",
        resource="pods",
        verbs=("get", "list", "watch", "create", "delete"),
        why="a job's workers",
    ),
    Rule(
        where=Where.JOBS,
        group="",
        resource="pods",
        verbs=("patch",),
        why="running agents are told of a new CA of the coordinator",
        optional=True,
    ),
    Rule(
        where=Where.JOBS,
        group="",
        resource="services",
        verbs=("get", "create", "patch"),
        why="a job's headless Service is made, and put right when somebody changed it",
    ),
    Rule(
        where=Where.JOBS,
        group="",
        resource="services",
        verbs=("list", "watch"),
        why="a job's Service that somebody deleted or changed is put right at once, and not read before each start",
        optional=True,
    ),
    Rule(
        where=Where.JOBS,
        group="",
        resource="events",
        verbs=("list", "create", "patch"),
        why="what happened to a job is told",
    ),
    Rule(
        where=Where.JOBS,
        group="coordination.k8s.io",
        resource="leases",
        verbs=("create",),
        why="no two installations serve one namespace",
    ),
    Rule(
        where=Where.JOBS,
        group="coordination.k8s.io",
        resource="leases",
        verbs=("get", "update"),
        named="claim",
        why="no two installations serve one namespace",
    ),
    Rule(where=Where.OWN, group="coordination.k8s.io", resource="leases", verbs=("create",), why="one replica leads"),
    Rule(
        where=Where.OWN,
        group="coordination.k8s.io",
        resource="leases",
        verbs=("get", "update"),
        named="lease",
        why="one replica leads",
    ),
    Rule(where=Where.OWN, group="", resource="secrets", verbs=("create",), why="the coordinator's CA and key are kept"),
    Rule(
        where=Where.OWN,
        group="",
        resource="secrets",
        verbs=("get",),
        named="secret",
        why="the coordinator's CA and key are kept",
    ),
    Rule(
        where=Where.OWN,
        group="",
        resource="services",
        verbs=("get",),
        named="service",
        why="agents reach the leader through it",
    ),
    Rule(
        where=Where.OWN,
        group="discovery.k8s.io",
        resource="endpointslices",
        verbs=("create",),
        why="agents are led to the leader",
    ),
    Rule(
        where=Where.OWN,
        group="discovery.k8s.io",
        resource="endpointslices",
        verbs=("get", "update"),
        named="service",
        why="agents are led to the leader",
    ),
    Rule(
        where=Where.OWN,
        group="discovery.k8s.io",
        resource="endpointslices",
        verbs=("delete",),
        named="service",
        why="a change of the address family",
        optional=True,
    ),
    Rule(
        where=Where.CLUSTER,
        group="authentication.k8s.io",
        resource="tokenreviews",
        verbs=("create",),
        why="agents' tokens are checked",
    ),
    Rule(
        where=Where.CLUSTER,
        group="",
        resource="nodes",
        verbs=("get", "list", "watch"),
        why="a worker that goes with its node is told from one that failed, and saves before",
        optional=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Right:
    """One question to the API server: may I?"""

    verb: str
    group: str
    resource: str
    namespace: str
    """Empty: in all namespaces, or not in one."""
    name: str
    why: str

    def missing(self) -> str:
        """The line for whoever installs."""
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        which = f" {self.name}" if self.name else ""
        place = f"in namespace {self.namespace}" if self.namespace else "cluster-wide"
        return (
            f"missing right: {self.verb} {what}{which} {place} ({self.why}); the chart's roles have it: helm "
            "upgrade, or add it to the operator's role"
        )


class RightsApi(Protocol):
    """What is needed of `kubeapi.Api`."""

    async def create(self, path: str, body: Manifest) -> Manifest: ...


def needed_rights(namespaces: Iterable[str], own_namespace: str, names: Mapping[str, str]) -> list[Right]:
    """What this installation cannot do without; `names` gives `secret`, `lease`, `service` and `claim` their names."""
    jobs = tuple(namespaces)
    return [
        Right(
            verb=verb,
            group=rule.group,
            resource=rule.resource,
            namespace=namespace,
            name=names[rule.named] if rule.named else "",
            why=rule.why,
        )
        for rule in RULES
        if not rule.optional
        for namespace in _places(rule.where, jobs, own_namespace)
        for verb in rule.verbs
    ]


def watch_rights(also: Also, namespaces: Iterable[str]) -> list[Right]:
    """To watch these too; none for nodes in an installation for some namespaces: it has no rights beyond them."""
    return [
        Right(verb=verb, group=rule.group, resource=rule.resource, namespace=namespace, name="", why=rule.why)
        for rule in RULES
        if rule.optional and rule.resource == also.value
        for namespace in _places(rule.where, tuple(namespaces), "")
        for verb in ("list", "watch")
    ]


async def may_also_watch(api: RightsApi, namespaces: Iterable[str]) -> frozenset[Also]:
    """What the API server lets us watch beside jobs and pods. Raises ClusterError."""
    served, allowed = tuple(namespaces), set()
    for also in Also:
        wanted = watch_rights(also, served)
        if wanted and not await missing_rights(api, wanted):
            allowed.add(also)
    return frozenset(allowed)


def _places(where: Where, jobs: tuple[str, ...], own_namespace: str) -> tuple[str, ...]:
    match where:
        case Where.JOBS:
            return jobs or ("",)
        case Where.OWN:
            return (own_namespace,)
        case Where.CLUSTER:
            return () if jobs else ("",)


async def missing_rights(api: RightsApi, rights: Iterable[Right]) -> list[Right]:
    """Those that the API server denies. Raises ClusterError."""
    slots = asyncio.Semaphore(PARALLEL_CHECKS)

    async def allowed(right: Right) -> bool:
        async with slots:
            answer = await api.create(_REVIEWS, _question(right))
        return bool((answer.get("status") or {}).get("allowed"))

    asked = list(rights)
    answers = await asyncio.gather(*(allowed(right) for right in asked))
    return [right for right, yes in zip(asked, answers, strict=True) if not yes]


def _question(right: Right) -> Manifest:
    resource, _, subresource = right.resource.partition("/")
    attributes: dict[str, Any] = {"verb": right.verb, "group": right.group, "resource": resource}
    attributes |= {
        field: value
        for field, value in (("subresource", subresource), ("namespace", right.namespace), ("name", right.name))
        if value
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
