"""Kubeflow Trainer with its JobSet controller on the test cluster, for measurements beside it.

Called by `__main__.py` (`make bench-k8s-peers`). Both are the released programs with the manifests that they ship with;
only the images are our own, for there may be no registry to take them from.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from cluster import images, kind, places
from cluster.binaries import PEERS, binary, module_folder
from cluster.engine import Engine
from cluster.process import ToolError, say, wait_until

NAMESPACE = "kubeflow-system"
_TRAINER, _JOBSET = "trainer-controller-manager", "jobset"
_DEPLOYMENTS = {_TRAINER: "kubeflow-trainer-controller-manager", _JOBSET: "jobset-controller-manager"}
_RECIPE = 'FROM scratch\nCOPY manager /manager\nUSER 65532:65532\nENTRYPOINT ["/manager"]\n'
_APPLY_S = 120
_UP_S = 240


def install(engine: Engine) -> None:
    """Build, load and install both, and wait until they serve. Raises ToolError, BuildError."""
    images.load(engine, [_image(engine, name) for name in PEERS])
    with tempfile.TemporaryDirectory(dir=places.cluster_folder(), prefix="peers-") as folder:
        _write(Path(folder))
        say(f"installing {', '.join(f'{name} {tool.version}' for name, tool in PEERS.items())}")
        _apply("-k", folder)
        for name in _DEPLOYMENTS.values():
            words = ("rollout", "status", f"deployment/{name}", f"--timeout={_UP_S}s")
            kind.kubectl("-n", NAMESPACE, *words, timeout_s=_UP_S + 10)
        # Their webhooks' certificates are made and spread some time after they are ready.
        runtime = Path(folder) / "manifests/base/runtimes/torch_distributed.yaml"
        wait_until("the runtime torch-distributed is taken", lambda: _taken(runtime), timeout_s=_UP_S, every_s=1.0)


def _taken(document: Path) -> bool:
    try:
        _apply("-f", document)
    except ToolError:
        return False
    return True


def _apply(how: str, what: str | Path) -> None:
    kind.kubectl("apply", "--server-side", "--force-conflicts", how, str(what), timeout_s=_APPLY_S)


def _tag(name: str) -> str:
    return f"trainjob-peer-{name}:{PEERS[name].version}"


def _image(engine: Engine, name: str) -> str:
    program = binary(name)
    if not engine.has_image(_tag(name)):
        with tempfile.TemporaryDirectory(dir=places.cluster_folder(), prefix="peer-") as folder:
            shutil.copy(program, Path(folder) / "manager")
            (Path(folder) / "Dockerfile").write_text(_RECIPE)
            engine.docker("build", "--tag", _tag(name), folder, timeout_s=300)
    return _tag(name)


def _write(folder: Path) -> None:
    """Their manifests as they lie in their modules. Kubeflow Trainer's fetch those of JobSet from its release; here
    they are put where it has that address.
    """
    _copy(module_folder(PEERS[_TRAINER]) / "manifests", folder / "manifests")
    jobset = folder / "manifests/third-party/jobset"
    _copy(module_folder(PEERS[_JOBSET]) / "config", jobset / "config")
    (jobset / "kustomization.yaml").write_text(
        _kustomization(["config/default"], patches=[{"path": "patches/jobset_remove_namespace.yaml"}])
    )
    (folder / "kustomization.yaml").write_text(
        _kustomization(
            ["manifests/overlays/manager"],
            patches=[_with_image(deployment, _tag(name)) for name, deployment in _DEPLOYMENTS.items()],
        )
    )


def _copy(source: Path, target: Path) -> None:
    """Go's module cache can only be read."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _with_image(deployment: str, image: str) -> dict[str, object]:
    replaced = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]
    return {"target": {"kind": "Deployment", "name": deployment}, "patch": json.dumps(replaced)}


def _kustomization(resources: list[str], **more: object) -> str:
    document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}
    return json.dumps({**document, **more}, indent=1)
