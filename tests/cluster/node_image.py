"""A kind node image from Debian packages, kind's own files and our builds of Kubernetes; no registry is asked.

Called by `kind.py`. The control plane's images go into the image's own containerd store, so that a node pulls nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cluster import archive, control_plane, packages, places, rootfs
from cluster.base_images import VENV_SITE
from cluster.binaries import ETCD, KUBERNETES, TOOLS, binary, locked, module_folder
from cluster.engine import Engine
from cluster.process import ToolError, run, say, start, wait_until

PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "conntrack", "iptables", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod", "libseccomp2", "pigz",
    "bash", "ca-certificates", "curl", "jq", "procps", "socat", "ebtables", "hostname", "e2fsprogs", "containerd", "runc", "containernetworking-plugins",
)  # fmt: skip
_FILES = Path(__file__).parent / "node_files"
_SERVICES = ("kubelet.service", "containerd.service", "undo-mount-hacks.service", "minicni.service")
_UNWANTED = (
    "usr/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "usr/lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "usr/lib/systemd/system/local-fs.target.wants/*",
    "usr/lib/systemd/system/sockets.target.wants/*udev*",
    "usr/lib/systemd/system/sockets.target.wants/*initctl*",
    "usr/lib/systemd/system/basic.target.wants/*",
)
_BINARIES = ("kube-apiserver", "kube-controller-manager", "etcd", "kubelet", "kubeadm", "kubectl", "coredns")
_CONFIG = {"Entrypoint": ["/usr/local/bin/entrypoint", "/sbin/init"], "StopSignal": "SIGRTMIN+3"}


def ensure(engine: Engine) -> str:
    """The node image's name; built and loaded if the engine does not have it. Raises ToolError, BuildError."""
    key = _key()
    name = f"trainjob-node:{key}"
    if engine.has_image(name):
        return name
    path = places.image_folder() / f"node-{key}.tar"
    with locked("node-image"):
        if not path.exists():
            packages.need(packages.IMAGES)
            debian = _prepare()
            say("building the node image (once)")
            with rootfs.unpacked(debian) as root:
                _fill(root)
                with tempfile.TemporaryDirectory(dir=places.image_folder(), prefix="control-plane-") as folder:
                    _preload(root, control_plane.archives(root, Path(folder)))
                archive.write(root, path, [name], _CONFIG, env=["container=docker"])
            for old in places.image_folder().glob("node-*.tar"):
                if old != path:
                    old.unlink()
    say("loading the node image into the engine")
    engine.docker("load", "--input", path, timeout_s=300)
    return name


def _prepare() -> Path:
    """The Debian tree; meanwhile Go builds what goes into it: one waits for the network, the other for the
    processor.
    """
    with ThreadPoolExecutor() as pool:
        debian = pool.submit(rootfs.debian, "bookworm", PACKAGES)
        for name in _BINARIES:
            binary(name)
        return debian.result()


def _key() -> str:
    """Of everything that decides the image's content."""
    digest = hashlib.sha256(f"{KUBERNETES} {TOOLS['kind']} {TOOLS['coredns']} {PACKAGES} {ETCD}".encode())
    sources = [
        Path(__file__),
        Path(control_plane.__file__),
        Path(archive.__file__),
        Path(rootfs.__file__),
        *sorted(_FILES.iterdir()),
    ]
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# --- The root file system --------------------------------------------------------------------------------------------


def _fill(root: Path) -> None:
    _kind_files(root)
    for pattern in _UNWANTED:
        for path in root.glob(pattern):
            path.unlink()
    with open(root / "etc/systemd/journald.conf", "a") as file:
        file.write("ReadKMsg=no\n")
    for name in ("kubelet", "kubeadm", "kubectl"):
        shutil.copy2(binary(name), root / "usr/bin" / name)
    for name in ("containerd", "ctr", "containerd-shim-runc-v2"):
        (root / "usr/local/bin" / name).unlink(missing_ok=True)
        (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{name}")
    _put(root, "crictl", "usr/local/bin/crictl", 0o755)
    _put(root, "minicni", "usr/local/bin/minicni", 0o755)
    _put(root, "minicni.service", "etc/systemd/system/minicni.service")
    _put(root, "default-cni.yaml", "kind/manifests/default-cni.yaml")
    _put(root, "default-storage.yaml", "kind/manifests/default-storage.yaml")
    for folder in ("opt/cni/bin", "etc/cni/net.d", "etc/kubernetes/manifests", VENV_SITE[1:]):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("host-local", "loopback", "ptp", "portmap"):
        shutil.copy2(root / "usr/lib/cni" / name, root / "opt/cni/bin" / name)
    (root / "kind/version").write_text(f"v{KUBERNETES}")
    _base_specification(root)
    run(["chroot", root, "systemctl", "enable", *_SERVICES], timeout_s=60)
    run(["chroot", root, "systemctl", "mask", "systemd-binfmt.service"], timeout_s=60)


def _kind_files(root: Path) -> None:
    files = module_folder(TOOLS["kind"]) / "images/base/files"
    for folder, _, names in os.walk(files):
        relative = Path(folder).relative_to(files)
        if relative.parts[:1] == ("LICENSES",):
            continue
        (root / relative).mkdir(parents=True, exist_ok=True)
        for name in names:
            target = root / relative / name
            target.unlink(missing_ok=True)
            shutil.copyfile(Path(folder) / name, target)
            target.chmod(0o755 if relative.name == "bin" else 0o644)
    (root / "kind").chmod(0o755)
    (root / "kind/manifests").mkdir(exist_ok=True)


def _put(root: Path, name: str, target: str, mode: int = 0o644) -> None:
    shutil.copyfile(_FILES / name, root / target)
    (root / target).chmod(mode)


def _base_specification(root: Path) -> None:
    """A node must do without CAP_SYS_RESOURCE: it lowers nobody's oom score and gives that capability to no
    container.
    """
    _edit(root / "etc/containerd/config.toml", "restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    _edit(root / "etc/systemd/system/containerd.service", "OOMScoreAdjust=-999\n", "")
    specification = json.loads(run(["chroot", root, "ctr", "oci", "spec"], timeout_s=60))
    specification["hooks"] = {"createContainer": [{"path": "/kind/bin/mount-product-files.sh"}]}
    specification["process"].pop("rlimits", None)
    # Every container of a node sees the host's Python packages, so that torch is in worker images without being in
    # them.
    specification["mounts"].append(
        {"destination": VENV_SITE, "type": "bind", "source": VENV_SITE, "options": ["rbind", "ro"]}
    )
    for names in specification["process"].get("capabilities", {}).values():
        names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(specification))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise ToolError(f"{path.name} of kind {TOOLS['kind'].version} is not as expected: no {old.strip()!r} in it")
    path.write_text(text.replace(old, new))


# --- Images inside the image -----------------------------------------------------------------------------------------


def _preload(root: Path, archives: list[Path]) -> None:
    """Import images into the tree's containerd store, content only: each node unpacks what it runs."""
    with _containerd(root) as socket:
        for path in archives:
            run(["ctr", "-a", socket, "-n", "k8s.io", "images", "import", "--no-unpack", path], timeout_s=120)


@contextmanager
def _containerd(root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="preload-", dir="/run") as name:
        folder = Path(name)
        socket, config, log = folder / "c.sock", folder / "config.toml", folder / "log"
        config.write_text(
            f'version = 2\nroot = "{root}/var/lib/containerd"\nstate = "{folder}/state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{socket}"\n'
        )
        pid = start(["containerd", "-c", config], log=log)
        try:
            wait_until("the preloading containerd answers", lambda: _answers(socket), timeout_s=30, log=log)
            yield socket
        finally:
            os.kill(pid, 15)
            os.waitpid(pid, 0)


def _answers(socket: Path) -> bool:
    return (
        socket.exists()
        and subprocess.run(["ctr", "-a", socket, "version"], capture_output=True, check=False).returncode == 0
    )
