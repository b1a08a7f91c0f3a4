"""The operator's Deployment as `tj doctor` sees it: in which namespace it is, and what keeps its pods from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.finding import Finding, Level
from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import ApiError

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Api, Manifest

SELECTOR = "app.kubernetes.io/name=trainjob"


def namespace_of(api: Api, named: str) -> str:
    """`named` if the operator is there, else the namespace that it is found in; `named` where that cannot be seen."""
    try:
        if deployments(api, named):
            return named
        elsewhere = api.items("/apis/apps/v1/deployments", labelSelector=SELECTOR)
    except ApiError:
        return named
    return next((each["metadata"]["namespace"] for each in elsewhere if _is_operator(each)), named)


def deployments(api: Api, namespace: str) -> list[Manifest]:
    """Those of the operator in that namespace. Raises ApiError."""
    found = api.items(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    return [deployment for deployment in found if _is_operator(deployment)]


def troubles(api: Api, deployment: Manifest) -> list[str]:
    """Why its pods do not run, as they say it: `ImagePullBackOff: ...`. Empty for who may not look."""
    selector = (deployment["spec"].get("selector") or {}).get("matchLabels") or {}
    try:
        pods = api.items(
            jobs_api.core(deployment["metadata"]["namespace"], "pods"),
            labelSelector=",".join(f"{key}={value}" for key, value in selector.items()),
        )
    except ApiError:
        return []
    found = []
    for pod in pods:
        status = pod.get("status") or {}
        for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                found.append(f"{waiting['reason']}: {waiting.get('message') or container.get('image')}")
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                found.append(f"{condition.get('reason')}: {condition.get('message')}")
    return list(dict.fromkeys(found))


def judge(deployment: Manifest, why: list[str]) -> Finding:
    """What its numbers say; `why`: what its pods say."""
    name, where = deployment["metadata"]["name"], deployment["metadata"]["namespace"]
    status = deployment.get("status") or {}
    replicas = deployment["spec"].get("replicas")
    wanted = 1 if replicas is None else int(replicas)
    ready, fresh = int(status.get("readyReplicas") or 0), int(status.get("updatedReplicas") or 0)
    text = f"{name} in {where}: {ready} of {wanted} ready"
    look = f"kubectl -n {where} describe pods -l {SELECTOR}"
    reason = f" ({'; '.join(why[:2])})" if why else ""
    if wanted == 0:
        return Finding(
            "operator",
            Level.FAIL,
            f"{name} in {where} is scaled to 0: nobody looks after jobs",
            f"kubectl -n {where} scale deployment/{name} --replicas=2",
        )
    if not ready:
        # Pods that wait for their image have no log.
        mend = look if why else f"kubectl -n {where} logs deployment/{name}; {look}"
        return Finding("operator", Level.FAIL, text + reason, mend)
    if fresh < wanted:
        return Finding(
            "operator",
            Level.WARN,
            f"{text}, but only {fresh} of the newest version: a rollout has not come through yet{reason}",
            f"{look}; kubectl -n {where} rollout undo deployment/{name} takes it back",
        )
    if ready < wanted or why:
        return Finding("operator", Level.WARN, text + reason, look)
    return Finding("operator", Level.OK, text)


def _is_operator(deployment: Manifest) -> bool:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    labels = deployment["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/name") == "trainjob" or any(
        "trainjob-operator" in str(container.get("image")) for container in containers
    )
