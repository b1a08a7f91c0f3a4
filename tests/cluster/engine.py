"""The container engine: the machine's Docker if one works, else a containerd and dockerd of our own, as processes.

Called by `kind.py` and `images.py`. The own engine touches no firewall rules and none of the machine's services; its
processes are ended by their recorded ids. Its images stay in the cache, everything else goes with `stop()`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster import packages, places
from cluster.binaries import cache_folder
from cluster.process import ToolError, run, say, start, wait_until

_CONTAINERD = """version = 2
root = "{root}"
state = "{state}"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{socket}"
"""
_WRAPPER = Path(__file__).parent / "engine_files" / "runc-without-resource"
_CAP_SYS_RESOURCE = 1 << 24
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_INOTIFY_WANTED = 1024
"""Each node has a systemd, kubelet and containerd that watch files: the kernel's 128 are not enough for three."""


@dataclass(frozen=True)
class Engine:
    """A Docker engine that answers."""

    own: bool
    host: str | None
    """DOCKER_HOST of our own engine; None: the machine's default."""

    @property
    def env(self) -> dict[str, str]:
        """What docker and kind need in their environment."""
        return {"DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"} if self.host else {}

    def docker(
        self, *words: str | Path, timeout_s: float = 60, log: Path | None = None, stdin: bytes | IO[bytes] | None = None
    ) -> str:
        """Run a docker command. Raises ToolError."""
        return run(["docker", *words], timeout_s=timeout_s, log=log, env=self.env, stdin=stdin)

    def has_image(self, name: str) -> bool:
        """Whether the engine holds an image."""
        return self.image_id(name) is not None

    def image_id(self, name: str) -> str | None:
        """The image's id, or None."""
        try:
            return self.docker("image", "inspect", "--format", "{{.Id}}", name).strip()
        except ToolError:
            return None


def find() -> Engine | None:
    """The engine that works now: our own if it runs, else the machine's."""
    if shutil.which("docker") is None:
        return None
    if _answers(_host()):
        return Engine(own=True, host=_host())
    return Engine(own=False, host=None) if _answers(None) else None


def ensure() -> Engine:
    """The working engine; starts our own if there is none. Raises ToolError."""
    engine = find()
    if engine is not None:
        _check_owner(engine)
        return engine
    if os.geteuid() != 0:
        raise ToolError("no Docker engine answers, and an own one needs root: start Docker, or run as root")
    packages.need(packages.ENGINE)
    stop()
    _note_settings()
    _start_containerd()
    try:
        _start_dockerd()
    except ToolError as error:
        say(f"{error}\ncluster: trying once more with an empty image store")
        stop()
        shutil.rmtree(_images(), ignore_errors=True)
        _note_settings()
        _start_containerd()
        _start_dockerd()
    return Engine(own=True, host=_host())


def stop() -> None:
    """End our own engine and remove what it left; nothing happens where it does not run."""
    for name in ("dockerd", "containerd"):
        _end(name)
    _end_shims()
    _unmount(places.run_folder(), places.cluster_folder(), _images())
    _restore_settings()
    shutil.rmtree(places.run_folder(), ignore_errors=True)
    shutil.rmtree(_folder(), ignore_errors=True)
    for hierarchy in Path("/sys/fs/cgroup").glob("*/docker"):
        _remove_cgroups(hierarchy)
    _remove_cgroups(Path("/sys/fs/cgroup/docker"))


def _check_owner(engine: Engine) -> None:
    """A machine has room for one own engine: whoever works with another cache folder must not take it over."""
    record = places.run_folder() / "owner"
    owner = record.read_text() if engine.own and record.exists() else str(cache_folder())
    if owner != str(cache_folder()):
        raise ToolError(
            f"a cluster of another cache folder runs on this machine: remove it first (TRAINJOB_CACHE={owner} make "
            "cluster-down)"
        )


def _folder() -> Path:
    return places.cluster_folder() / "engine"


def _images() -> Path:
    """dockerd's data: emptied of containers, volumes and networks by `down`, its images are part of the cache."""
    return cache_folder() / "engine"


def _host() -> str:
    return f"unix://{places.run_folder()}/docker.sock"


def _answers(host: str | None) -> bool:
    if host is not None and not Path(host.removeprefix("unix://")).exists():
        return False
    try:
        run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            timeout_s=15,
            env={"DOCKER_HOST": host} if host else None,
        )
    except ToolError:
        return False
    return True


def _start_containerd() -> None:
    state, socket = places.run_folder() / "containerd", places.run_folder() / "containerd.sock"
    for folder in (state, _folder()):
        folder.mkdir(parents=True, exist_ok=True)
    (places.run_folder() / "owner").write_text(str(cache_folder()))
    config = _folder() / "containerd.toml"
    config.write_text(_CONTAINERD.format(root=_folder() / "containerd", state=state, socket=socket))
    log = places.log_folder() / "containerd.log"
    _record("containerd", start(["containerd", "-c", config], log=log, env=_path()))
    wait_until("containerd answers", socket.exists, timeout_s=30, log=log)


def _start_dockerd() -> None:
    log = places.log_folder() / "dockerd.log"
    _images().mkdir(parents=True, exist_ok=True)
    words: list[str | Path] = [
        "dockerd",
        "--data-root",
        _images(),
        "--exec-root",
        places.run_folder() / "docker",
        "--pidfile",
        _folder() / "dockerd.own.pid",
    ]
    words += [
        "-H",
        _host(),
        "--containerd",
        places.run_folder() / "containerd.sock",
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
    ]
    words += ["--oom-score-adjust", "0", "--exec-opt", "native.cgroupdriver=cgroupfs"]
    if not _may_set_limits():
        words += ["--add-runtime", f"limited={_WRAPPER}", "--default-runtime", "limited"]
    pid = start(words, log=log, env=_path())
    _record("dockerd", pid)
    wait_until("dockerd answers", lambda: not _alive(pid) or _answers(_host()), timeout_s=60, log=log)
    if not _alive(pid):
        wait_until("dockerd stays up", lambda: False, timeout_s=0, log=log)
    say("own Docker engine started")


def _note_settings() -> None:
    """Kernel settings that the engine changes are noted, so that `stop()` can put them back."""
    _folder().mkdir(parents=True, exist_ok=True)
    noted = {str(path): path.read_text().strip() for path in (_INOTIFY, _FORWARDING)}
    (_folder() / "settings.json").write_text(json.dumps(noted))
    if int(noted[str(_INOTIFY)]) < _INOTIFY_WANTED:
        _INOTIFY.write_text(str(_INOTIFY_WANTED))


def _restore_settings() -> None:
    record = _folder() / "settings.json"
    if record.exists():
        for path, value in json.loads(record.read_text()).items():
            Path(path).write_text(value)


def _may_set_limits() -> bool:
    """Whether this machine grants CAP_SYS_RESOURCE, which privileged containers ask for."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) & _CAP_SYS_RESOURCE)
    return True


def _path() -> dict[str, str]:
    return {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


# --- Processes, mounts and groups that an engine leaves --------------------------------------------------------------


def _record(name: str, pid: int) -> None:
    (_folder() / f"{name}.pid").write_text(f"{pid} {_born(pid)}")


def _born(pid: int) -> str:
    """The process's start time: an id that was given again has another."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _end(name: str) -> None:
    path = _folder() / f"{name}.pid"
    if not path.exists():
        return
    word, _, born = path.read_text().partition(" ")
    pid = int(word)
    if born and _born(pid) == born:
        _signal(pid, signal.SIGTERM)
        try:
            wait_until(f"{name} ends", lambda: not _alive(pid), timeout_s=30)
        except ToolError:
            _signal(pid, signal.SIGKILL)
            wait_until(f"{name} ends", lambda: not _alive(pid), timeout_s=10)
    path.unlink()


def _end_shims() -> None:
    """Shims of containers that were still there: recognised by our socket's path in their command line."""
    mark = f"{places.run_folder()}/containerd.sock".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"containerd-shim" in words[0] and mark in words:
                _end_children(int(folder.name))
                _signal(int(folder.name), signal.SIGKILL)


def _end_children(pid: int) -> None:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        _signal(int(child), signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    # A daemon that this very process started stays a zombie until it is waited for.
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _unmount(*folders: Path) -> None:
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in sorted(mounted, reverse=True):
        if any(Path(path).is_relative_to(folder) for folder in folders):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)


def _remove_cgroups(top: Path) -> None:
    if top.is_dir():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass


def has_cgroup_v2() -> bool:
    """Whether containers here live in the unified cgroup hierarchy."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()
