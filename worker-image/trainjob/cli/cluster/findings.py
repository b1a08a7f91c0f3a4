"""What `tj doctor` looks at: each check asks the cluster one thing and says what it found, and how to mend it.

A check never raises for what the cluster answers: a missing right is a finding, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from trainjob.cli.cluster import operator_pods
from trainjob.cli.finding import Finding, Level
from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import ApiError
from trainjob.screen import wording
from trainjob_api import bad_nodes, contract, defaults

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Api

INSTALL = "helm upgrade --install trainjob helm/trainjob --namespace {namespace} --create-namespace"
CRD = f"{contract.PLURAL}.{contract.GROUP}"
EDITOR_ROLE = "trainjob-editor"
LEASE_LATE_S = 60.0
WRITE_MANY = "ReadWriteMany"
NEEDED = (
    ("create", contract.GROUP, contract.PLURAL, "", True),
    ("get", contract.GROUP, contract.PLURAL, "", True),
    ("list", contract.GROUP, contract.PLURAL, "", True),
    ("patch", contract.GROUP, contract.PLURAL, "", True),
    ("delete", contract.GROUP, contract.PLURAL, "", True),
    ("list", "", "pods", "", True),
    ("get", "", "pods", "log", True),
    ("list", "", "events", "", False),
    ("create", "", "configmaps", "", False),
    ("patch", "", "configmaps", "", False),
)
"""verb, group, resource, subresource; whether commands fail without it (the others carry code, or tell more)."""


@dataclass(frozen=True)
class Patient:
    """What is examined."""

    api: Api
    namespace: str
    operator_namespace: str

    @property
    def install(self) -> str:
        """The command that installs or mends the installation."""
        return INSTALL.format(namespace=self.operator_namespace)


def examine(patient: Patient) -> list[Finding]:
    """All findings; only the first when no cluster answers."""
    found = [cluster(patient)]
    if found[0].level is Level.FAIL:
        return found
    patient = replace(patient, operator_namespace=operator_pods.namespace_of(patient.api, patient.operator_namespace))
    checks: tuple[Callable[[Patient], Finding], ...] = (
        crd,
        operator,
        leader,
        coordinator,
        rights,
        storage,
        gpus,
        nodes,
        namespace,
    )
    for check in checks:
        try:
            found.append(check(patient))
        except ApiError as error:
            title = check.__name__.replace("_", " ")
            if error.status == 403:
                found.append(
                    Finding(
                        title,
                        Level.WARN,
                        "you may not look at this",
                        "ask an administrator to run `tj doctor`, or for the right to read it",
                    )
                )
            else:
                found.append(Finding(title, Level.FAIL, str(error), error.next_step))
    return found


def cluster(patient: Patient) -> Finding:
    """Whether anybody answers, and lets this user in."""
    try:
        answer = patient.api.document("/version")
    except ApiError as error:
        return Finding("cluster", Level.FAIL, str(error), error.next_step)
    return Finding(
        "cluster",
        Level.OK,
        f"{patient.api.server} (context {patient.api.context}), Kubernetes {answer.get('gitVersion')}",
    )


def crd(patient: Patient) -> Finding:
    """Whether the API server knows TrainJobs, of which version."""
    try:
        served = patient.api.get(jobs_api.JOBS)
    except ApiError as error:
        if error.status != 404:
            raise
        return Finding("crd", Level.FAIL, f"{CRD} is not installed", patient.install)
    if not any(resource.get("name") == contract.PLURAL for resource in served.get("resources") or ()):
        return Finding("crd", Level.FAIL, f"{CRD} is installed, but {contract.VERSION} is not served", patient.install)
    said = _crd_version(patient)
    if said and said != version("trainjob"):
        return Finding(
            "crd",
            Level.WARN,
            f"{CRD} is of version {said}, this command of {version('trainjob')}",
            f"bring both to one version: TrainJob {said} where `tj` runs, or {patient.install}",
        )
    return Finding("crd", Level.OK, f"{CRD} {contract.VERSION}" + (f", version {said}" if said else ""))


def _crd_version(patient: Patient) -> str:
    """From its label; "" where there is none, or for a user who may not read CRDs."""
    try:
        found = patient.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}")
    except ApiError as error:
        if error.status in (403, 404):
            return ""
        raise
    return str((found["metadata"].get("labels") or {}).get("app.kubernetes.io/version") or "")


def operator(patient: Patient) -> Finding:
    """Whether a Deployment of it has ready pods of its newest version."""
    where = patient.operator_namespace
    ours = operator_pods.deployments(patient.api, where)
    if not ours:
        return Finding(
            "operator",
            Level.FAIL,
            f"there is no Deployment of the operator in namespace {where}",
            f"{patient.install} (or name its namespace: --operator-namespace)",
        )
    return operator_pods.judge(ours[0], operator_pods.troubles(patient.api, ours[0]))


def leader(patient: Patient) -> Finding:
    """Whether somebody holds the Lease and renews it."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{patient.operator_namespace}/leases/{contract.LEASE_NAME}"
    logs = f"kubectl -n {patient.operator_namespace} logs -l app.kubernetes.io/name=trainjob --tail=50"
    try:
        spec = patient.api.get(path).get("spec") or {}
    except ApiError as error:
        if error.status != 404:
            raise
        return Finding(
            "leader",
            Level.FAIL,
            f"no operator has ever led (no Lease {contract.LEASE_NAME} in {patient.operator_namespace})",
            logs,
        )
    holder, renewed = spec.get("holderIdentity"), _seconds_ago(spec.get("renewTime"))
    if not holder:
        return Finding("leader", Level.FAIL, "no operator leads: the last one has given the Lease back", logs)
    if renewed is None or renewed > LEASE_LATE_S:
        return Finding(
            "leader",
            Level.FAIL,
            f"{holder} holds the Lease, but has not renewed it for {wording.duration(renewed or 0)}",
            logs,
        )
    return Finding("leader", Level.OK, f"{holder}, renewed {wording.duration(renewed)} ago")


def coordinator(patient: Patient) -> Finding:
    """Whether pods would reach the leader: the Service, and the EndpointSlice that the leader writes."""
    where = patient.operator_namespace
    service = patient.api.items(
        f"/api/v1/namespaces/{where}/services", fieldSelector=f"metadata.name={contract.COORDINATOR_SERVICE}"
    )
    if not service:
        return Finding(
            "coordinator", Level.FAIL, f"there is no Service {contract.COORDINATOR_SERVICE} in {where}", patient.install
        )
    slices = patient.api.items(
        f"/apis/discovery.k8s.io/v1/namespaces/{where}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={contract.COORDINATOR_SERVICE}",
    )
    addresses = [
        address
        for part in slices
        for endpoint in part.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    if not addresses:
        return Finding(
            "coordinator",
            Level.FAIL,
            "its Service leads nowhere: no leader has written its address",
            f"kubectl -n {where} logs -l app.kubernetes.io/name=trainjob --tail=50",
        )
    return Finding("coordinator", Level.OK, f"Service {contract.COORDINATOR_SERVICE}.{where} -> {', '.join(addresses)}")


def rights(patient: Patient) -> Finding:
    """What this user may do in the namespace."""
    missing: list[str] = []
    lesser: list[str] = []
    for verb, group, resource, subresource, vital in NEEDED:
        if not _may(patient, verb, group, resource, subresource):
            name = f"{verb} {resource}" + (f"/{subresource}" if subresource else "")
            (missing if vital else lesser).append(name)
    who = _user(patient)
    grant = (
        f"kubectl -n {patient.namespace} create rolebinding tj-{EDITOR_ROLE.removeprefix('trainjob-')} "
        f"--clusterrole={EDITOR_ROLE} --user={who} (an administrator)"
    )
    if missing:
        return Finding(
            "rights",
            Level.FAIL,
            f"{who} may not, in namespace {patient.namespace}: {', '.join([*missing, *lesser])}",
            grant,
        )
    if lesser:
        return Finding(
            "rights", Level.WARN, f"{who} may not, in namespace {patient.namespace}: {', '.join(lesser)}", grant
        )
    return Finding("rights", Level.OK, f"{who} may do all that `tj` does in namespace {patient.namespace}")


def _may(patient: Patient, verb: str, group: str, resource: str, subresource: str) -> bool:
    wanted = {
        "namespace": patient.namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = patient.api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool((answer.get("status") or {}).get("allowed"))


def _user(patient: Patient) -> str:
    """The name by which the cluster knows this user; since Kubernetes 1.28."""
    try:
        answer = patient.api.create(
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
    except ApiError:
        return "YOU"
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "YOU")


def storage(patient: Patient) -> Finding:
    """Whether there is a claim that several pods could write their checkpoints to."""
    claims = patient.api.items(f"/api/v1/namespaces/{patient.namespace}/persistentvolumeclaims")
    shared = [claim["metadata"]["name"] for claim in claims if WRITE_MANY in (claim["spec"].get("accessModes") or ())]
    if shared:
        return Finding(
            "storage",
            Level.OK,
            f"claims that several nodes can write: {', '.join(shared[:5])}; mount one and set "
            "spec.checkpoint.storage to a folder on it",
        )
    classes = patient.api.items("/apis/storage.k8s.io/v1/storageclasses")
    names = ", ".join(found["metadata"]["name"] for found in classes[:5]) or "none"
    return Finding(
        "storage",
        Level.WARN,
        f"namespace {patient.namespace} has no claim with {WRITE_MANY} ({wording.count(len(claims), 'claim')}; "
        f"storage classes: {names}): checkpoints survive processes, not pods",
        f"make a PersistentVolumeClaim with accessModes: [{WRITE_MANY}] of a class that offers it (NFS, CephFS, EFS, "
        "Filestore, ...)",
    )


def gpus(patient: Patient) -> Finding:
    """What the nodes offer."""
    nodes = patient.api.items("/api/v1/nodes")
    found = {
        name: sum(_whole((node.get("status") or {}).get("allocatable", {}).get(name)) for node in nodes)
        for name in defaults.GPU_RESOURCES
    }
    there = [f"{count} {name}" for name, count in found.items() if count]
    text = f"{wording.count(len(nodes), 'node')}, " + (", ".join(there) if there else "no GPUs")
    mend = (
        ""
        if there
        else "nothing for training on CPUs; with GPUs in the nodes, install their device plugin (NVIDIA GPU operator)"
    )
    return Finding("gpus", Level.OK if there else Level.WARN, text, mend)


def nodes(patient: Patient) -> Finding:
    """On which of them ranks of different jobs of the namespace broke or were slow."""
    jobs = [jobs_api.read(found) for found in patient.api.items(jobs_api.collection(patient.namespace))]
    now = datetime.now(UTC)
    bad = bad_nodes.bad_nodes((mark for job in jobs for mark in bad_nodes.marks(job, now)), now)
    if not bad:
        return Finding(
            "nodes", Level.OK, f"none on which several jobs of {patient.namespace} suffered in the last hour"
        )
    names = " ".join(node.name for node in bad)
    return Finding(
        "nodes",
        Level.WARN,
        "; ".join(f"{node.name}: {node.why}; new pods keep away until {node.until:%H:%M} UTC" for node in bad),
        f"look at them, or take them out: kubectl cordon {names}",
    )


def _whole(quantity: object) -> int:
    return int(str(quantity)) if str(quantity).isdigit() else 0


def namespace(patient: Patient) -> Finding:
    """What the namespace demands of pods."""
    try:
        labels = patient.api.get(f"/api/v1/namespaces/{patient.namespace}")["metadata"].get("labels") or {}
    except ApiError as error:
        if error.status != 404:
            raise
        return Finding(
            "namespace",
            Level.FAIL,
            f"namespace {patient.namespace} does not exist",
            f"kubectl create namespace {patient.namespace}",
        )
    enforced = labels.get("pod-security.kubernetes.io/enforce")
    if enforced == "restricted":
        return Finding(
            "namespace",
            Level.OK,
            f"{patient.namespace} enforces pod security {enforced}: templates need runAsNonRoot, seccompProfile, no "
            "capabilities, no privilege escalation",
        )
    return Finding(
        "namespace", Level.OK, f"{patient.namespace}" + (f" enforces pod security {enforced}" if enforced else "")
    )


def _seconds_ago(text: str | None) -> float | None:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(text))).total_seconds()
    except ValueError:
        return None
