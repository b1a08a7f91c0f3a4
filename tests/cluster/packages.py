"""Debian packages that the tool needs on the machine itself: installed by apt-get when missing and allowed, else
named.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from cluster import places
from cluster.process import ToolError, run, say

ENGINE = {
    "docker": "docker.io",
    "dockerd": "docker.io",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "nft": "nftables",
    "ip": "iproute2",
}
IMAGES = {
    "debootstrap": "debootstrap",
    "containerd": "containerd",
    "ctr": "containerd",
    "gcc": "gcc",
    "dpkg-deb": "dpkg",
}
TESTS = {"mkfs.xfs": "xfsprogs", "busybox": "busybox", "zsh": "zsh", "fish": "fish"}
"""Without them the tests of `make test` that need a file system with reflink, or another shell, are skipped."""


def need(commands: Mapping[str, str]) -> None:
    """Make sure that these commands (name -> Debian package) are there. Raises ToolError naming what is missing."""
    missing = sorted({package for command, package in commands.items() if not _found(command)})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ToolError(
            f"missing on this machine: {', '.join(missing)}. Install them (apt-get install {' '.join(missing)}), or "
            "use a machine with Docker"
        )
    say(f"apt-get install {' '.join(missing)}")
    log = places.log_folder() / "apt.log"
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], timeout_s=300, log=log, env=quiet)
    # Their services are not wanted: the tool starts its own engine.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing], timeout_s=600, log=log, env=quiet)
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def _found(command: str) -> bool:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
