"""What takes minutes the first time and needs neither a cluster nor the virtual environment: Go builds and Debian
trees, made ahead.

Called by `__main__.py`: `binaries` before `make test` runs (no test's time limit should have to cover a build),
`prepare` by CI, which runs it beside the installation of the environment. What is in the cache already costs nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from cluster import base_images, node_image, packages, preflight, rootfs
from cluster import engine as engines
from cluster.binaries import BuildError, binary, have_go, is_built
from cluster.process import say

FOR_TESTS = (("kube-apiserver", "kubectl"), ("etcd", "versitygw", "helm"))
"""What `make test` runs, in two lanes: while one downloads or links, which takes one core, the other compiles."""
FOR_CLUSTER = (("kubelet",), ("kind", "coredns"))
"""What the cluster needs beside these. Its lanes follow those of the tests: most of a kubelet is compiled by then."""


def binaries() -> None:
    """Build what `make test` needs; where that is not allowed or not possible, say so: its tests skip with their
    reason. Raises BuildError.
    """
    lanes = [[name for name in lane if not _is_there(name)] for lane in FOR_TESTS]
    missing = [name for lane in lanes for name in lane]
    if not missing:
        return
    if os.environ.get("TRAINJOB_BUILD") == "0" or not have_go():
        why = "TRAINJOB_BUILD=0 forbids to build them" if have_go() else "Go is not installed"
        say(f"{', '.join(missing)}: not there, and {why}; tests that need them are skipped")
        return
    say(f"{', '.join(missing)}: built now, once; from nothing it takes about ten minutes on two cores")
    _build(lanes)


def prepare() -> None:
    """Everything that `make test` and, where one can be made, a cluster of our own take from the cache. Raises
    BuildError, ToolError.
    """
    engine = engines.find()
    if (engine is not None and not engine.own) or preflight.obstacle() is not None or not have_go():
        binaries()
        return
    packages.need({**packages.ENGINE, **packages.IMAGES, **packages.TESTS})
    with ThreadPoolExecutor() as pool:
        trees = pool.submit(_debian_trees)
        _build([[*first, *second] for first, second in zip(FOR_TESTS, FOR_CLUSTER, strict=True)])
        trees.result()


def _is_there(name: str) -> bool:
    return is_built(name) or (name == "kubectl" and shutil.which("kubectl") is not None)


def _build(lanes: Sequence[Sequence[str]]) -> None:
    def build(lane: Sequence[str]) -> None:
        for name in lane:
            binary(name)

    with ThreadPoolExecutor() as pool:
        futures: list[Future[None]] = [pool.submit(build, lane) for lane in lanes]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise errors[0] if isinstance(errors[0], BuildError) else BuildError(str(errors[0]))


def _debian_trees() -> None:
    """They wait for the network while Go keeps the processors busy."""
    rootfs.debian("bookworm", node_image.PACKAGES)
    suite = rootfs.SUITES.get(base_images.PYTHON)
    if suite is not None:
        rootfs.debian(suite, base_images._PACKAGES)
