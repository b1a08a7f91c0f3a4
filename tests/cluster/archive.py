"""A one-layer image as a tar that `docker load` and `ctr images import` take, written from a tree without any engine.

Used by `node_image.py` and `base_images.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import rootfs

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def architecture() -> str:
    """This machine's, as images name it."""
    return _MACHINES.get(platform.machine(), platform.machine())


def write(
    tree: Path, path: Path, names: Sequence[str], config: Mapping[str, object] | None = None, env: Sequence[str] = ()
) -> None:
    """Write an image of `tree` under `names` to `path`, whole or not at all; `config` is the image's (Entrypoint,
    Cmd, StopSignal, ...).
    """
    layer = path.with_suffix(".layer")
    rootfs.pack(tree, layer)
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    document = {
        "architecture": architecture(),
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": {**(config or {}), "Env": [_PATH, *env]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created": "2026-01-01T00:00:00Z"}],
    }
    text = json.dumps(document).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    part = path.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        _add(tar, name, text)
        tar.add(layer, "layer.tar")
        _add(
            tar,
            "manifest.json",
            json.dumps([{"Config": name, "RepoTags": list(names), "Layers": ["layer.tar"]}]).encode(),
        )
    layer.unlink()
    part.rename(path)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
