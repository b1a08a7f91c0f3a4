"""What a person does with TrainJobs on a cluster: create, look, suspend, restart, scale, delete. One function, one
request.

Called by the command line and the trainer's Kubernetes backend; `api.py` sends. Nothing here waits or prints.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from trainjob.launch.cluster.api import Api, ApiError, Manifest
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

JOBS = f"/apis/{contract.GROUP}/{contract.VERSION}"
_SALVAGES = 20


def collection(namespace: str | None) -> str:
    """Path of the TrainJobs of a namespace; None: of all."""
    return f"{JOBS}/{contract.PLURAL}" if namespace is None else f"{JOBS}/namespaces/{namespace}/{contract.PLURAL}"


def path(namespace: str, name: str) -> str:
    """Path of one TrainJob."""
    return f"{collection(namespace)}/{name}"


def core(namespace: str, kind: str, name: str = "") -> str:
    """Path of a core object (pods, events, configmaps), or of their collection."""
    return f"/api/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def read(manifest: Manifest) -> TrainJob:
    """The model of a stored TrainJob; what an operator of another version wrote and this one does not know is left
    out.
    """
    document: Any = {
        key: manifest[key] for key in ("apiVersion", "kind", "metadata", "spec", "status") if key in manifest
    }
    for _ in range(_SALVAGES):
        try:
            return TrainJob.model_validate(document)
        except ValidationError as error:
            document = _without(
                document, [entry["loc"] for entry in error.errors(include_url=False, include_input=False)]
            )
    raise ApiError(
        f"TrainJob {manifest['metadata']['name']} cannot be read by this version",
        next_step="`tj doctor` compares the versions",
    )


def _without(document: Any, places: list[tuple[int | str, ...]]) -> Any:
    """A copy without the fields at those places; a place in a list takes the whole list, a field that is missing the
    object that lacks it.
    """
    import copy

    found = copy.deepcopy(document)
    for path in {_there(document, place) for place in places}:
        part = found
        for step in path[:-1]:
            part = part.get(step, {})
        if path:
            part.pop(path[-1], None)
    return found


def _there(document: Any, place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """As much of the place as the document has."""
    path, part = [], document
    for step in place:
        if not isinstance(part, dict) or step not in part:
            break
        path.append(step)
        part = part[step]
    return tuple(path)


def shown(manifest: Manifest) -> Manifest:
    """As `-o json` prints it: without the API server's notes on who set which field, as kubectl leaves them out."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    return {**manifest, "metadata": metadata}


def get(api: Api, namespace: str, name: str) -> Manifest:
    """The TrainJob as it is stored. Raises ApiError, with the names there are when it is not among them."""
    try:
        return api.get(path(namespace, name))
    except ApiError as error:
        if not error.absent:
            raise
        raise ApiError(
            f"there is no TrainJob {name} in namespace {namespace}",
            next_step=f"`tj list -n {namespace}` shows what there is, `tj list -A` everywhere",
            status=404,
            reason=error.reason,
        ) from None


def pods(api: Api, namespace: str, name: str) -> list[Manifest]:
    """The job's pods, by slot."""
    found = api.items(core(namespace, "pods"), labelSelector=f"{contract.LABEL_JOB}={name}")
    return sorted(found, key=slot)


def slot(pod: Manifest) -> int:
    """A pod's slot; -1 where its label says none."""
    text = str((pod["metadata"].get("labels") or {}).get(contract.LABEL_SLOT, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else -1


def suspend(api: Api, namespace: str, name: str, *, cancelled: bool = False) -> Manifest:
    """Ask for no pods; `cancelled` marks it as meant for good."""
    body: Manifest = {"spec": {"suspend": True}}
    if cancelled:
        body["metadata"] = {"annotations": {contract.ANNOTATION_CANCELLED: _now()}}
    return api.patch(path(namespace, name), body)


def resume(api: Api, namespace: str, name: str) -> Manifest:
    """Take a suspension, and a mark of `cancel`, back."""
    return api.patch(
        path(namespace, name),
        {"metadata": {"annotations": {contract.ANNOTATION_CANCELLED: None}}, "spec": {"suspend": False}},
    )


def restart(api: Api, namespace: str, name: str) -> Manifest:
    """Ask for a new attempt."""
    return api.patch(path(namespace, name), {"metadata": {"annotations": {contract.ANNOTATION_RESTART: _now()}}})


def ask_stacks(api: Api, namespace: str, name: str, request: str) -> Manifest:
    """Ask where the ranks are; status.stacks names the request that it answers."""
    return api.patch(path(namespace, name), {"metadata": {"annotations": {contract.ANNOTATION_STACKS: request}}})


def scale(api: Api, namespace: str, name: str, workers: int) -> Manifest:
    """Ask for another number of workers."""
    return api.patch(path(namespace, name), {"spec": {"workers": workers}})


def delete(api: Api, namespace: str, name: str) -> Manifest:
    """Delete the TrainJob; its pods go with it, its checkpoints stay on storage."""
    return api.delete(path(namespace, name), {"propagationPolicy": "Background"})


def cancelled(manifest: Manifest) -> bool:
    """Whether `cancel` suspended it."""
    marked = contract.ANNOTATION_CANCELLED in (manifest["metadata"].get("annotations") or {})
    return marked and bool((manifest.get("spec") or {}).get("suspend"))


def create(api: Api, document: Manifest, carried: Manifest | None = None) -> Manifest:
    """Create the TrainJob, with the ConfigMap that it mounts if there is one, which it then owns."""
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    if carried is not None:
        # Before the job: a pod that is there before its ConfigMap waits a minute for the kubelet's next try.
        api.create(core(namespace, "configmaps"), carried)
    try:
        made = api.create(collection(namespace), document)
    except ApiError as error:
        if carried is not None and not error.passing:
            api.delete(core(namespace, "configmaps", carried["metadata"]["name"]))
        if error.reason != "AlreadyExists":
            raise
        raise ApiError(
            f"there is a TrainJob {name} in namespace {namespace} already",
            next_step="give --replace to put this one in its place (it resumes from its checkpoints), or another "
            f"name; `tj status {name} -n {namespace}` shows it",
            status=409,
            reason=error.reason,
        ) from None
    if carried is not None:
        owner = {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "name": name,
            "uid": made["metadata"]["uid"],
        }
        api.patch(
            core(namespace, "configmaps", carried["metadata"]["name"]), {"metadata": {"ownerReferences": [owner]}}
        )
    return made


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
