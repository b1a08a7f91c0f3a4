"""What lies under a storage path on this machine, in words: the likely reason why another worker does not see the same
files.

Called by the storage child when it is asked whether it sees what rank 0's worker wrote, and by staging (of what kind a
file system is). Reads /proc/self/mountinfo; pure apart from that.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

_MOUNTS = "/proc/self/mountinfo"
_KUBELET = (
    ("kubernetes.io~empty-dir", "an emptyDir volume, which every pod has for itself"),
    ("kubernetes.io~local-volume", "a local PersistentVolume, which is one node's own disk"),
)
_SHARED = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "glusterfs",
    "9p",
    "virtiofs",
    "afs",
    "ocfs2",
    "gfs2",
)
_IN_MEMORY = ("tmpfs", "ramfs")


class Mount(NamedTuple):
    """A line of mountinfo, as far as it matters here."""

    point: str
    root: str
    """What of the file system is mounted there."""
    kind: str
    source: str


def describe(path: str, table: Optional[str] = None) -> str:
    """`table`: mountinfo's text, for tests."""
    mount = _mount_of(path, table)
    if mount is None:
        return "a volume of its own"
    for part, words in _KUBELET:
        if part in mount.root or part in mount.source:
            return words
    if mount.point == "/":
        return "no volume at all, but the container's own file system"
    if mount.kind in _IN_MEMORY:
        return "a file system in this machine's memory"
    if mount.kind in _SHARED or mount.kind.startswith("fuse"):
        return (
            f"another {mount.kind} file system ({mount.source}{'' if mount.root == '/' else ', folder ' + mount.root})"
        )
    where = f"folder {mount.root} of " if mount.root != "/" else ""
    return f"a disk of this node: {where}{mount.source} ({mount.kind}), as by hostPath"


def kind_of(path: str, table: Optional[str] = None) -> Optional[str]:
    """The type of the file system there; None: nobody can tell."""
    mount = _mount_of(path, table)
    return None if mount is None else mount.kind


def _mount_of(path: str, table: Optional[str]) -> Optional[Mount]:
    if table is None:
        try:
            with open(_MOUNTS, encoding="utf-8", errors="replace") as file:
                table = file.read()
        except OSError:
            return None
    return find(os.path.realpath(path), table)


def find(path: str, table: str) -> Optional[Mount]:
    """The mount that a path lies on: the longest mount point above it, of several the last one."""
    found: Optional[Mount] = None
    for line in table.splitlines():
        mount = _parse(line)
        above = mount is not None and (path == mount.point or path.startswith(mount.point.rstrip("/") + "/"))
        if mount is not None and above and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _parse(line: str) -> Optional[Mount]:
    left, separator, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if not separator or len(before) < 6 or len(after) < 2:
        return None
    return Mount(_plain(before[4]), _plain(before[3]), after[0], _plain(after[1]))


def _plain(text: str) -> str:
    """Blanks and the like stand there as octal numbers."""
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, sign)
    return text
