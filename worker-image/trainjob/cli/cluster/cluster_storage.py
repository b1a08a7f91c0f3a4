"""How this machine comes to the storage of a job on a cluster: the settings of a bucket, the folder behind a volume,
and the ways out where neither helps.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.launch import job as jobs
from trainjob.launch.cluster import bucket, jobs_api
from trainjob_api import contract, defaults

if TYPE_CHECKING:
    from trainjob.cli.cluster.connect import Place
    from trainjob.launch.cluster.api import Manifest
    from trainjob_api.v1alpha1 import TrainJob

HELPER = "tj-files"


@dataclass(frozen=True)
class Settings:
    """Where the job's folder is, and what a refusal has to know to help."""

    folder: str
    """URI or path, as this machine opens it."""
    namespace: str
    endpoint: str | None = None
    secret: str | None = None


def settings(there: Place, manifest: Manifest, job: TrainJob) -> Settings:
    """Raises CommandError when the job has no storage, or one that this machine cannot see."""
    folder = defaults.job_storage(job)
    if folder is None:
        raise CommandError(
            f"{job.metadata.name} has no storage (spec.checkpoint.storage): its checkpoints live with its pods and "
            "are not kept",
            next_step="give the next job a storage: tj submit ... --storage s3://BUCKET/FOLDER, or --volume "
            "CLAIM:/PATH --storage /PATH",
            code=contract.CLI_NOT_FOUND,
        )
    if jobs.is_s3(folder):
        s3 = job.spec.checkpoint.s3
        return Settings(folder, there.namespace, _endpoint(job), s3.credentials_secret if s3 is not None else None)
    folder = folder.removeprefix("file://")
    for path in (folder, _on_the_nodes(job, folder)):
        if path is not None and _is_that_jobs(path, manifest):
            return Settings(path, there.namespace)
    raise CommandError(
        f"the checkpoints of {job.metadata.name} are in {folder} on {_volume_words(job, folder)}, which this machine "
        "does not see",
        next_step=ways_out(there, job, folder),
    )


def _endpoint(job: TrainJob) -> str | None:
    found = bucket.environ(job, os.environ)
    return next((found[name] for name in contract.S3_ENDPOINT_VARIABLES if found.get(name)), None)


def next_step(error: StoreError, cluster: Settings | None) -> str:
    """What to type after a refusal of the storage; the error's own text has the cause."""
    text = str(error)
    if "needs boto3" in text:
        return f"{sys.executable} -m pip install boto3, then {AGAIN}"
    if cluster is not None and cluster.secret and ("no credentials" in text or "credentials are not valid" in text):
        words = [
            f"{name}=$(kubectl get secret {cluster.secret} -n {cluster.namespace} -o jsonpath='{{.data.{name}}}' | "
            "base64 -d)"
            for name in _KEYS
        ]
        return f"if you may read the job's Secret: `export {' '.join(words)}`, then {AGAIN}"
    service = _service(cluster.endpoint, cluster.namespace) if cluster is not None and cluster.endpoint else None
    if service is not None and "does not answer" in text:
        name, namespace, scheme, port = service
        return (
            f"{name} is a Service of the cluster: `kubectl port-forward -n {namespace} svc/{name} {port}:{port}` in "
            "another terminal, "
            f"then the same command with AWS_ENDPOINT_URL_S3={scheme}://127.0.0.1:{port} before it"
        )
    if error.kind == errors.CONFLICT:
        return "name another folder with -o"
    return f"correct that, then {AGAIN}"


_KEYS = contract.S3_SECRET_KEYS[:2]


def _service(endpoint: str, namespace: str) -> tuple[str, str, str, int] | None:
    """(name, namespace, scheme, port) of an endpoint that is a Service; None for others."""
    parts = urlsplit(endpoint)
    words = (parts.hostname or "").removesuffix(".cluster.local").removesuffix(".svc").split(".")
    inside = len(words) == 1 or (len(words) == 2 and (".svc" in endpoint or not words[1].isdigit()))
    if not inside or words[0] in ("", "localhost"):
        return None
    return (
        words[0],
        words[1] if len(words) == 2 else namespace,
        parts.scheme,
        parts.port or (443 if parts.scheme == "https" else 80),
    )


# --- Volumes ----------------------------------------------------------------------------------------------------------


def _mount(job: TrainJob, folder: str) -> tuple[dict[str, Any], str, str] | None:
    """(volume, path where it is mounted, subPath) of the trainer's volume that holds the folder: the longest mount
    above it.
    """
    mounts = [
        m
        for m in defaults.trainer_container(job.spec)[1].get("volumeMounts") or ()
        if isinstance(m, dict) and m.get("mountPath")
    ]
    above = [m for m in mounts if f"{folder}/".startswith(str(m["mountPath"]).rstrip("/") + "/")]
    chosen = max(above, key=lambda m: len(str(m["mountPath"])), default=None)
    volumes = (job.spec.template.get("spec") or {}).get("volumes") or ()
    volume = next(
        (v for v in volumes if chosen is not None and isinstance(v, dict) and v.get("name") == chosen.get("name")), None
    )
    return (
        (volume, str(chosen["mountPath"]).rstrip("/"), str(chosen.get("subPath") or ""))
        if chosen is not None and volume is not None
        else None
    )


def _on_the_nodes(job: TrainJob, folder: str) -> str | None:
    """The path on the nodes of a folder on a hostPath volume."""
    found = _mount(job, folder)
    if found is None or not isinstance(found[0].get("hostPath"), dict):
        return None
    volume, mount, below = found
    return os.path.normpath(
        "/".join(part for part in (str(volume["hostPath"].get("path")), below, folder[len(mount) :].strip("/")) if part)
    )


def _is_that_jobs(path: str, manifest: Manifest) -> bool:
    """Whether the folder on this machine is the very one: a run in it was claimed by this object. The same path may
    be another disk here.
    """
    if not os.path.isdir(path):
        return False
    store = open_store(path)
    try:
        claims = [runs.read_claim(store, run) for run in reversed(runs.numbers(store))]
    except StoreError:
        return False
    return any(claim is not None and claim.job_uid == manifest["metadata"]["uid"] for claim in claims)


def _volume_words(job: TrainJob, folder: str) -> str:
    found = _mount(job, folder)
    if found is None:
        return "its pods' own disk"
    volume = found[0]
    claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    return f"claim {claim}" if claim else f"volume {volume.get('name')} ({', '.join(k for k in volume if k != 'name')})"


def ways_out(there: Place, job: TrainJob, folder: str) -> str:
    """The commands that bring the folder here: from a pod of the job that is there, else from a helper pod with its
    volume.
    """
    name, namespace = job.metadata.name, there.namespace
    context = f" --context {there.api.context}" if "--context" in there.flags else ""
    kubectl = f"kubectl{context} -n {namespace}"
    after = f"tj checkpoints list ./{name}"
    pod = next(
        (
            p["metadata"]["name"]
            for p in jobs_api.pods(there.api, namespace, name)
            if (p.get("status") or {}).get("phase") == "Running"
        ),
        None,
    )
    found, container = _mount(job, folder), defaults.trainer_container(job.spec)[1]
    shared = (
        "\n      where this machine mounts the same file system: give that path, tj checkpoints list /MOUNT/"
        + f"{namespace}/{name}"
    )
    if pod is not None:
        return (
            f"{kubectl} cp {pod}:{folder} ./{name} -c {container.get('name')}   (from its pod)\n      {after}{shared}"
        )
    if found is None:
        return (
            "give the next job a volume or a bucket: --volume CLAIM:/PATH --storage /PATH, or --storage "
            "s3://BUCKET/FOLDER"
        )
    spec = _helper(job, found[0], container, found[1])
    return (
        f"{kubectl} run {HELPER} --image={spec['containers'][0]['image']} --restart=Never "
        f"--overrides={shlex.quote(_json({'spec': spec}))}\n"
        f"      {kubectl} wait --for=condition=Ready pod/{HELPER} --timeout=15m\n"
        f"      {kubectl} cp {HELPER}:{folder} ./{name}\n"
        f"      {kubectl} delete pod {HELPER} --wait=false\n"
        f"      {after}{shared}"
    )


def _helper(job: TrainJob, volume: dict[str, Any], container: Mapping[str, Any], mount: str) -> dict[str, Any]:
    """A pod that only waits, with the job's volume, image and security settings."""
    template = job.spec.template.get("spec") or {}
    mounts = [
        m
        for m in container.get("volumeMounts") or ()
        if m.get("name") == volume.get("name") and str(m.get("mountPath")).rstrip("/") == mount
    ]
    helper = {
        "name": HELPER,
        "image": str(container.get("image")),
        "command": ["sleep", "3600"],
        "volumeMounts": mounts,
    }
    if container.get("securityContext"):
        helper["securityContext"] = container["securityContext"]
    kept = {
        key: template[key]
        for key in ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
        if template.get(key)
    }
    return {
        **kept,
        "containers": [helper],
        "volumes": [volume],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
    }


def _json(value: object) -> str:
    import json

    return json.dumps(value, separators=(",", ":"))
