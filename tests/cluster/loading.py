"""Images from the engine into the nodes, without the layers that a node has already: a changed operator is there in
seconds.

Called by `images.py`. `kind load` sends every layer each time; here an OCI archive holds only what is missing, and
containerd finds the rest in its content store.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster import places
from cluster.engine import Engine
from cluster.process import ToolError

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class _Saved:
    """One image inside the tar that `docker save` wrote."""

    names: list[str]
    config: bytes
    layers: dict[str, str]
    """Digest -> the layer's path in the tar."""


def load(engine: Engine, nodes: Sequence[str], images: Sequence[str]) -> None:
    """Copy images into the nodes' containerd. Raises ToolError."""
    with tempfile.TemporaryDirectory(dir=places.cluster_folder(), prefix="load-") as folder:
        saved, archive = Path(folder) / "saved.tar", Path(folder) / "archive.tar"
        engine.docker("save", "--output", saved, *images, timeout_s=300)
        present = set.intersection(*(_content(engine, node) for node in nodes))
        _write(saved, archive, present)
        try:
            _import(engine, nodes, archive)
        except ToolError:
            # A layer that was there may have been collected in between.
            _write(saved, archive, set())
            _import(engine, nodes, archive)


def _content(engine: Engine, node: str) -> set[str]:
    return set(engine.docker("exec", node, "ctr", "-n", "k8s.io", "content", "ls", "-q").split())


def _write(saved: Path, archive: Path, present: set[str]) -> None:
    written: set[str] = set()
    manifests = []
    with tarfile.open(saved) as source, tarfile.open(archive, "w") as target:
        _add(target, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        for image in _read(source):
            layers = []
            for digest, path in image.layers.items():
                entry = source.getmember(path)
                if entry.issym():
                    entry = source.getmember(os.path.normpath(os.path.join(os.path.dirname(path), entry.linkname)))
                layers.append({"mediaType": _LAYER, "digest": digest, "size": entry.size})
                if digest not in present and digest not in written:
                    written.add(digest)
                    blob = tarfile.TarInfo(f"blobs/{digest.replace(':', '/')}")
                    blob.size = entry.size
                    target.addfile(blob, source.extractfile(entry))
            config = _blob(target, image.config, _CONFIG)
            manifest = json.dumps(
                {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": layers}
            ).encode()
            described = _blob(target, manifest, _MANIFEST)
            for name in image.names:
                full = name if "/" in name else f"docker.io/library/{name}"
                manifests.append({**described, "annotations": {"io.containerd.image.name": full}})
        _add(
            target, "index.json", json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}).encode()
        )


def _read(source: tarfile.TarFile) -> list[_Saved]:
    found = []
    for entry in json.loads(_bytes(source, "manifest.json")):
        config = _bytes(source, entry["Config"])
        layers = dict(zip(json.loads(config)["rootfs"]["diff_ids"], entry["Layers"], strict=True))
        found.append(_Saved(entry["RepoTags"], config, layers))
    return found


def _bytes(source: tarfile.TarFile, path: str) -> bytes:
    file = source.extractfile(path)
    if file is None:
        raise ToolError(f"docker save wrote no {path}")
    return file.read()


def _blob(target: tarfile.TarFile, content: bytes, media_type: str) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    _add(target, f"blobs/sha256/{digest}", content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add(target: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    target.addfile(entry, io.BytesIO(content))


def _import(engine: Engine, nodes: Sequence[str], archive: Path) -> None:
    with ThreadPoolExecutor(len(nodes)) as pool:
        for _ in pool.map(lambda node: _import_one(engine, node, archive), nodes):
            pass


def _import_one(engine: Engine, node: str, archive: Path) -> None:
    with open(archive, "rb") as file:
        engine.docker(
            *("exec", "--interactive", node, "ctr", "-n", "k8s.io", "images", "import", "--all-platforms", "--digests", "--snapshotter=overlayfs", "-"),
            timeout_s=300, stdin=file,
        )  # fmt: skip
