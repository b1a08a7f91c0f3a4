"""`Kubernetes(image=...)`: the cluster that a TorchTrainer runs on, and the TrainJob that comes of a trainer and it.

Called by user code and by `cluster_run.py`. Pure: asks no cluster anything (`api.py` does).
"""

from __future__ import annotations

import copy
import io
import os
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from trainjob.launch import job as jobs
from trainjob.launch.errors import ConfigError
from trainjob.launch.handover import carry
from trainjob.launch.handover.carry import Manifest
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

_OURS = frozenset({"trainjob", "trainjob_api", "trainjob_operator", "cloudpickle"})


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """Where and in what the ranks run.

    ```python
    backend = trainjob.Kubernetes(image="registry.example.com/team/train:1", namespace="ml")
    ```
    """

    image: str
    """Image of the workers: Python of the launcher's version and torch. TrainJob itself and cloudpickle need not be
    in it.
    """
    namespace: str | None = None
    """Absent: the kubeconfig context's."""
    template: Mapping[str, Any] | None = None
    """A pod template (`{"metadata": ..., "spec": ...}`) to start from: tolerations, sidecars, security contexts,
    pull secrets.
    """
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the ranks."""
    volumes: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    """Mount path -> name of a PersistentVolumeClaim, or a volume source such as `{"nfs": {"server": ..., "path":
    ...}}`.
    """
    s3: Mapping[str, str] = field(default_factory=dict)
    """How the pods reach a storage path at s3://: `endpointURL`, `region`, `credentialsSecret`, `caConfigMap`, as in
    spec.checkpoint.s3 of a TrainJob.
    """
    gpus_per_pod: int | None = None
    """GPUs that one pod gets; wins over `ScalingConfig.gpus_per_pod`."""
    python: str = "python"
    """The image's interpreter."""
    context: str | None = None
    """Context of the kubeconfig; absent: the current one."""
    kubeconfig: str | None = None
    """Absent: $KUBECONFIG, else ~/.kube/config, else the pod's own service account."""

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or not self.image.strip():
            raise ConfigError(
                "Kubernetes.image",
                self.image,
                "give the image that the workers run, for example 'pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime'",
            )
        for name in ("env", "volumes", "s3"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"Kubernetes.{name}", getattr(self, name), "give a dict")
        for key, value in self.env.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise ConfigError(f"Kubernetes.env[{key!r}]", value, "names and values are strings")
        for path, source in self.volumes.items():
            if not isinstance(path, str) or not path.startswith("/"):
                raise ConfigError(
                    "Kubernetes.volumes", path, "the keys are the absolute paths where the volumes are mounted"
                )
            if not isinstance(source, str | Mapping) or not source:
                raise ConfigError(
                    f"Kubernetes.volumes[{path!r}]",
                    source,
                    "give the name of a PersistentVolumeClaim, or a volume source as a dict",
                )
        if self.template is not None and (
            not isinstance(self.template, Mapping) or not isinstance(self.template.get("spec", {}), Mapping)
        ):
            raise ConfigError(
                "Kubernetes.template", self.template, "give a pod template: {'metadata': {...}, 'spec': {...}}"
            )
        if self.gpus_per_pod is not None and (
            isinstance(self.gpus_per_pod, bool) or not isinstance(self.gpus_per_pod, int) or self.gpus_per_pod < 1
        ):
            raise ConfigError("Kubernetes.gpus_per_pod", self.gpus_per_pod, "give a number >= 1")


def without_values(backend: Kubernetes) -> tuple[Kubernetes, tuple[str, ...]]:
    """For a file: without the values of environment variables, which may be secrets, and the names of those."""
    names = set(backend.env)
    template = copy.deepcopy(backend.template)
    spec: Any = (template or {}).get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for variable in container.get("env") or ():
            if variable.pop("value", None):
                names.add(str(variable.get("name")))
    return replace(backend, env={}, template=template), tuple(sorted(names))


def document(trainer: jobs.TrainerJob, backend: Kubernetes, namespace: str) -> Manifest:
    """The TrainJob of a trainer on that cluster, still without its payload."""
    scaling = (
        trainer.scaling if backend.gpus_per_pod is None else replace(trainer.scaling, gpus_per_pod=backend.gpus_per_pod)
    )
    job = jobs.from_trainer(
        replace(trainer, scaling=scaling, run=replace(trainer.run, storage_path=storage(trainer, backend) or "/"))
    )
    found = lean(job, namespace)
    if storage(trainer, backend) is None:
        found["spec"].get("checkpoint", {}).pop("storage", None)
    elif backend.s3:
        found["spec"]["checkpoint"]["s3"] = dict(backend.s3)
    found["spec"]["template"] = _template(found["spec"]["template"], backend)
    return found


def storage(trainer: jobs.TrainerJob, backend: Kubernetes) -> str | None:
    """The storage path inside the pods; ConfigError for one that no volume brings there."""
    if trainer.run.storage_path is None:
        return None
    path = os.fspath(trainer.run.storage_path).removeprefix("file://")
    if jobs.is_s3(path):
        return path
    mounts = [*backend.volumes, *_mounts(backend.template)]
    if not path.startswith("/"):
        raise ConfigError(
            "RunConfig.storage_path",
            path,
            "on a cluster it is s3://bucket/folder, or an absolute path inside the pods, on a volume that all of "
            "them mount",
        )
    if not any(path == mount.rstrip("/") or path.startswith(mount.rstrip("/") + "/") for mount in mounts):
        there = f"(mounted: {', '.join(sorted(mounts))})" if mounts else "(none is mounted)"
        raise ConfigError(
            "RunConfig.storage_path",
            path,
            f"no volume of the pods holds that path {there}: give Kubernetes(volumes={{{path!r}: 'my-claim'}})",
        )
    return path


def lean(job: TrainJob, namespace: str) -> Manifest:
    """The document of a new TrainJob, without what is default anyway."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    return {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": job.metadata.name, "namespace": namespace},
        "spec": {"workers": job.spec.workers, **spec},
    }


def _mounts(template: Mapping[str, Any] | None) -> list[str]:
    containers = ((template or {}).get("spec") or {}).get("containers") or ()
    return [
        str(mount["mountPath"])
        for container in containers
        for mount in container.get("volumeMounts") or ()
        if "mountPath" in mount
    ]


def over_template(template: Mapping[str, Any], made: Manifest) -> Manifest:
    """A user's pod template with our trainer in it: its own fields stay, what the trainer decides is set."""
    found: Manifest = copy.deepcopy(dict(template))
    spec: Manifest = found.setdefault("spec", {})
    ours = made["spec"]
    containers: list[Manifest] = spec.setdefault("containers", [])
    if not containers:
        containers.append({})
    container, trainer = carry.trainer_of(spec), carry.trainer_of(ours)
    theirs = dict(container)
    env = {entry["name"]: entry for entry in [*(theirs.get("env") or []), *(trainer.get("env") or [])]}
    name, image = theirs.get("name", contract.TRAINER_CONTAINER), theirs.get("image") or trainer.get("image")
    container.update({**trainer, "name": name, **({"image": image} if image else {})})
    if env:
        container["env"] = list(env.values())
    container.pop("args", None)
    if "resources" in trainer:
        container["resources"] = _merged(theirs.get("resources") or {}, trainer["resources"])
    for key in ("nodeSelector", "affinity"):
        if key in ours:
            spec[key] = _merged(spec.get(key) or {}, ours[key])
    return found


def _template(made: Manifest, backend: Kubernetes) -> Manifest:
    """The backend's template, image, environment and volumes."""
    found = over_template(backend.template or {}, made)
    spec = found["spec"]
    container = carry.trainer_of(spec)
    container["image"] = backend.image
    env = {entry["name"]: entry for entry in container.get("env") or ()}
    env |= {name: {"name": name, "value": value} for name, value in backend.env.items()}
    if env:
        container["env"] = list(env.values())
    for number, (path, source) in enumerate(backend.volumes.items()):
        volume = {"persistentVolumeClaim": {"claimName": source}} if isinstance(source, str) else dict(source)
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": f"trainer-volume-{number}", **volume}]
        container["volumeMounts"] = [
            *(container.get("volumeMounts") or []),
            {"name": f"trainer-volume-{number}", "mountPath": path},
        ]
    return found


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> Manifest:
    """Maps merged all the way down; the second wins."""
    found: Manifest = copy.deepcopy(dict(first))
    for key, value in second.items():
        found[key] = (
            _merged(found[key], value)
            if isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            else copy.deepcopy(value)
        )
    return found


@contextmanager
def own_modules_by_value() -> Iterator[None]:
    """While this holds, code of modules that are not installed (a helper beside the notebook) is pickled itself, not
    its name.
    """
    import cloudpickle

    taken = [module for module in list(sys.modules.values()) if _is_own(module)]
    for module in taken:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in taken:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType) -> bool:
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not file or name == "__main__" or sys.modules.get(name) is not module or name.split(".")[0] in _OURS:
        return False
    path = os.path.realpath(file)
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return False
    installed = {os.path.realpath(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(path.startswith(root + os.sep) for root in installed)


def cloudpickle_archive() -> bytes:
    """The launcher's cloudpickle, as a zip that Python imports from."""
    import cloudpickle

    folder = os.path.dirname(str(cloudpickle.__file__))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                archive.write(os.path.join(folder, name), f"cloudpickle/{name}")
    return target.getvalue()


def payload_path() -> str:
    """Where the ranks find the payload."""
    return f"{carry.PAYLOAD_DIR}/{carry.PAYLOAD}"
