"""The kind cluster itself: one control plane and two workers, made, checked, mended and removed.

Called by `__main__.py`. Workers have the virtual environment's packages at /opt/venv-site (torch need not enter an
image) and one host folder at /shared, the same on every node.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
import time
from pathlib import Path

from cluster import engine as engines
from cluster import node_image, places
from cluster.base_images import VENV_SITE
from cluster.binaries import binary, have_go
from cluster.engine import Engine
from cluster.process import ToolError, run, say, wait_until

SHARED = "/shared"
_KUBELET = """kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
failCgroupV1: false
"""
_NAMES = {
    "spec": {"template": {"spec": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}},
}
"""CoreDNS stays where no test takes the node away. It is put on the first node that is Ready: were that a worker, all of
it would be there, and names would resolve nowhere once that one is gone.
"""


def up(engine: Engine, *, registry: bool) -> bool:
    """Make sure that the cluster runs with all nodes Ready; True if it was made anew. Raises ToolError, BuildError."""
    if _exists(engine):
        trouble = _mend(engine)
        if not trouble:
            _wait_ready()
            return False
        say(f"{trouble}: the cluster is made anew")
        delete(engine)
    image = None if registry else node_image.ensure(engine)
    say(f"creating the cluster with {'the published node image' if image is None else image}")
    begun = time.monotonic()
    places.shared_folder().mkdir(parents=True, exist_ok=True)
    places.shared_folder().chmod(0o1777)
    config = places.cluster_folder() / "kind.json"
    config.write_text(json.dumps(_config(limits=image is not None), indent=1))
    words: list[str | Path] = [
        _kind(),
        "create",
        "cluster",
        "--name",
        places.CLUSTER,
        "--config",
        config,
        "--kubeconfig",
        places.kubeconfig(),
        "--retain",
    ]
    run(
        words + (["--image", image] if image else []),
        timeout_s=400,
        log=places.log_folder() / "kind.log",
        env=engine.env,
    )
    _wait_ready()
    say(f"cluster of {1 + places.WORKERS} nodes ready in {time.monotonic() - begun:.0f} s")
    return True


def delete(engine: Engine) -> None:
    """Remove the cluster, its network and its volumes."""
    if _exists(engine):
        words: list[str | Path] = [
            _kind(),
            "delete",
            "cluster",
            "--name",
            places.CLUSTER,
            "--kubeconfig",
            places.kubeconfig(),
        ]
        run(words, timeout_s=600, log=places.log_folder() / "kind.log", env=engine.env)
    if engine.own and "kind" in engine.docker("network", "ls", "--format", "{{.Name}}").split():
        engine.docker("network", "rm", "kind")


def nodes(engine: Engine) -> dict[str, str]:
    """Name -> state ("running", "exited", ...) of the nodes' containers."""
    words = (
        "ps",
        "--all",
        "--filter",
        f"label=io.x-k8s.kind.cluster={places.CLUSTER}",
        "--format",
        "{{.Names}} {{.State}}",
    )
    return dict(line.split(" ", 1) for line in engine.docker(*words).splitlines())


def answers() -> bool:
    """Whether the API server of the recorded kubeconfig answers."""
    try:
        return kubectl("get", "--raw", "/readyz", timeout_s=10).strip() == "ok"
    except ToolError:
        return False


def kubectl(*words: str, timeout_s: float = 30) -> str:
    """Run kubectl on this cluster. Raises ToolError."""
    found = shutil.which("kubectl") or binary("kubectl")
    return run([found, "--kubeconfig", places.kubeconfig(), *words], timeout_s=timeout_s)


def workers(engine: Engine) -> list[str]:
    """Names of the nodes that run jobs."""
    return [name for name in nodes(engine) if not name.endswith("-control-plane")]


def _kind() -> Path:
    found = shutil.which("kind")
    if found:
        return Path(found)
    if not have_go():
        raise ToolError(
            "neither kind nor Go is installed: install kind (https://kind.sigs.k8s.io), or Go 1.25 to build it"
        )
    return binary("kind")


def _exists(engine: Engine) -> bool:
    return bool(nodes(engine))


def _mend(engine: Engine) -> str:
    """Start nodes that were stopped; returns why the cluster is of no use, or nothing."""
    if not places.kubeconfig().exists():
        return "no kubeconfig of the cluster is left"
    site = _recorded_site()
    if not site.exists():
        return f"the virtual environment that the nodes show ({site}) is gone"
    for name, state in nodes(engine).items():
        if state != "running":
            say(f"starting node {name} ({state})")
            engine.docker("unpause" if state == "paused" else "start", name)
    try:
        wait_until("the API server answers", answers, timeout_s=60, every_s=0.5)
    except ToolError as error:
        return str(error)
    return ""


def _recorded_site() -> Path:
    """The host's Python packages that the running nodes have mounted."""
    config = json.loads((places.cluster_folder() / "kind.json").read_text())
    return Path(config["nodes"][-1]["extraMounts"][0]["hostPath"])


def _wait_ready() -> None:
    def ready() -> bool:
        found = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        good = [
            node
            for node in found
            if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))
        ]
        return len(good) == 1 + places.WORKERS

    def names_resolve() -> bool:
        slices = json.loads(
            kubectl(
                "-n", "kube-system", "get", "endpointslices", "-l", "kubernetes.io/service-name=kube-dns", "-o", "json"
            )
        )["items"]
        found = [endpoint for one in slices for endpoint in one.get("endpoints") or []]
        home = [
            each
            for each in found
            if each["conditions"].get("ready") and each.get("nodeName") == f"{places.CLUSTER}-control-plane"
        ]
        return bool(home) and len(home) == len(found)

    wait_until("all nodes are Ready", ready, timeout_s=120, every_s=0.5, log=places.log_folder() / "kind.log")
    kubectl("-n", "kube-system", "patch", "deployment", "coredns", "--patch", json.dumps(_NAMES))
    wait_until("CoreDNS is ready", names_resolve, timeout_s=120, every_s=0.5, log=places.log_folder() / "kind.log")


def _config(*, limits: bool) -> dict[str, object]:
    mounts = [
        {"hostPath": sysconfig.get_paths()["purelib"], "containerPath": VENV_SITE, "readOnly": True},
        {"hostPath": str(places.shared_folder()), "containerPath": SHARED},
    ]
    document: dict[str, object] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"ipFamily": "ipv4", "podSubnet": "10.246.0.0/16", "serviceSubnet": "10.98.0.0/16"},
        "nodes": [
            {"role": "control-plane"},
            *({"role": "worker", "extraMounts": mounts} for _ in range(places.WORKERS)),
        ],
    }
    if limits and not engines.has_cgroup_v2():
        document["kubeadmConfigPatches"] = [_KUBELET]
    return document
