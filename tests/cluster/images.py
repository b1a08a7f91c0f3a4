"""The project's images: built from its own Dockerfiles, loaded into the cluster's nodes, pushed to a registry.

Called by `__main__.py`. The engine's build cache makes an unchanged build a matter of a second or two.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cluster import base_images, kind, loading, places
from cluster import engine as engines
from cluster.base_images import Bases
from cluster.binaries import binary
from cluster.engine import Engine
from cluster.process import ToolError, run, say

ROOT = Path(__file__).resolve().parents[2]
TAG = "dev"
E2E_BASE = "trainjob-e2e-base"
"""A Python in which torch can be imported and nothing of ours is: any user's image."""
S3_SERVER = "trainjob-e2e-s3"
"""An S3 server for end-to-end tests: versitygw, which serves a folder."""


@dataclass(frozen=True)
class Image:
    """One of the project's images."""

    name: str
    dockerfile: str
    target: str | None = None


IMAGES = (
    Image("trainjob-operator", "operator/Dockerfile"),
    Image("trainjob-runtime", "worker-image/Dockerfile", target="runtime"),
    Image("trainjob-worker", "worker-image/Dockerfile", target="worker"),
)


def version() -> str:
    """The project's version: the tag that the chart asks for by default."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def build(engine: Engine, *, registry: bool) -> list[str]:
    """Build all images; returns their names, each under the tags `dev` and the version. Raises ToolError."""
    bases = base_images.ensure(engine, registry=registry)
    names = []
    for image in IMAGES:
        tags = [f"{image.name}:{tag}" for tag in (TAG, version())]
        _build("docker", engine, image, bases, tags)
        names += tags
    engine.docker("tag", bases.torch, f"{E2E_BASE}:{TAG}")
    return [*names, f"{E2E_BASE}:{TAG}", _s3_server(engine, bases)]


def _s3_server(engine: Engine, bases: Bases) -> str:
    """A shell beside the binary, so that tests can make buckets, which are folders. Raises ToolError."""
    program = binary("versitygw")
    recipe = f'FROM {bases.shell}\nCOPY {program.name} /bin/{program.name}\nENTRYPOINT ["/bin/{program.name}"]\n'
    # Its name has everything that decides what is in it: 45 MB need not be sent to the engine to find out.
    name = f"{S3_SERVER}:{hashlib.sha256(f'{program} {recipe}'.encode()).hexdigest()[:8]}"
    if not engine.has_image(name):
        with tempfile.TemporaryDirectory(dir=places.cluster_folder(), prefix="s3-") as folder:
            shutil.copy(program, Path(folder) / program.name)
            (Path(folder) / "Dockerfile").write_text(recipe)
            engine.docker("build", "--tag", name, folder, timeout_s=300)
    engine.docker("tag", name, f"{S3_SERVER}:{TAG}")
    return f"{S3_SERVER}:{TAG}"


def load(engine: Engine, names: list[str]) -> None:
    """Copy into the worker nodes what they do not have yet. Raises ToolError."""
    record = places.cluster_folder() / "loaded.json"
    loaded = json.loads(record.read_text()) if record.exists() else {}
    wanted = {name: engine.image_id(name) for name in names}
    missing = [name for name, identity in wanted.items() if loaded.get(name) != identity]
    if missing:
        say(f"loading {', '.join(missing)}")
        loading.load(engine, kind.workers(engine), missing)
        record.write_text(json.dumps({**loaded, **wanted}))


def push(registry: str, tag: str, *, public: bool) -> list[str]:
    """Build, tag and push all images with the builder that is there; returns what was pushed. Raises ToolError.

    `public`: published base images can be had, so those that the Dockerfiles name are taken.
    """
    if not registry or not tag:
        raise ToolError("make push needs both, for example: make push REGISTRY=registry.example.org/team TAG=0.1.0")
    builder = _builder()
    engine = engines.ensure() if builder == "docker" else None
    bases = base_images.ensure(engine, registry=False) if engine and not public else None
    pushed = []
    for image in IMAGES:
        name = f"{registry.rstrip('/')}/{image.name}:{tag}"
        _build(builder, engine, image, bases, [name])
        say(f"pushing {name}")
        run([builder, "push", name], timeout_s=900, log=_log(), env=engine.env if engine else None)
        pushed.append(name)
    return pushed


def _builder() -> str:
    """buildah, podman or docker, whichever is there."""
    return next((name for name in ("buildah", "podman") if shutil.which(name)), "docker")


def _build(builder: str, engine: Engine | None, image: Image, bases: Bases | None, tags: list[str]) -> None:
    words: list[str | Path] = [builder, "build", "--file", ROOT / image.dockerfile]
    words += ["--target", image.target] if image.target else []
    words += ["--network", "host"] if engine and engine.own else []
    for name, value in _arguments(image, bases).items():
        words += ["--build-arg", f"{name}={value}"]
    for tag in tags:
        words += ["--tag", tag]
    say(f"building {tags[0]}")
    run([*words, ROOT], timeout_s=1200, log=_log(), env=engine.env if engine else None)


def _arguments(image: Image, bases: Bases | None) -> dict[str, str]:
    """Build arguments for bases of our own, which bring scikit-learn with torch; none: what the Dockerfiles name is
    taken.
    """
    if bases is None:
        return {}
    if image.dockerfile.startswith("operator"):
        return {"BASE": bases.python}
    return {"BASE": bases.torch, "RUNTIME_BASE": bases.shell, "PACKAGES": ""}


def _log() -> Path:
    return places.log_folder() / "images.log"
