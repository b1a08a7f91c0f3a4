"""The chart as Helm renders it: `render(...)` is a list of objects, `refusal(...)` what Helm says instead."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.binaries import BuildError, binary, have_go, is_built
from support.isolation import ROOT
from support.patience import HANG_S

CHART = ROOT / "helm" / "trainjob"
RELEASE = "tj"
NAMESPACE = "trainjob-system"
KUBERNETES = "1.35.0"

Object = dict[str, Any]


class _Strict(yaml.SafeLoader):
    """No name comes twice in a mapping: Helm takes the last one, kustomize refuses the document."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(name) for name, _ in node.value]
        assert len(set(names)) == len(names), f"{max(names, key=names.count)} comes twice{node.start_mark}"
        return super().construct_mapping(node, deep)


@functools.cache
def helm() -> Path:
    """The helm command; skips the test where there is none and none can be built."""
    found = shutil.which("helm")
    if found:
        return Path(found)
    if not is_built("helm") and os.environ.get("TRAINJOB_BUILD") == "0":
        pytest.skip("no helm on PATH, and TRAINJOB_BUILD=0 forbids to build one (1 min, once)")
    if not is_built("helm") and not have_go():
        pytest.skip("no helm on PATH, and no Go to build one")
    try:
        return binary("helm")
    except BuildError as error:
        pytest.skip(f"helm cannot be built here: {error}")


def run_helm(*words: str, timeout_s: float = HANG_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(helm()), *words], capture_output=True, text=True, timeout=timeout_s)


def render(
    *settings: str,
    chart: Path = CHART,
    values: Object | None = None,
    tmp_path: Path | None = None,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> list[Object]:
    """`helm template` with `--set` for each of `settings`, and with a values file."""
    done = _template(settings, chart, _values_file(values, tmp_path), release, namespace)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, _Strict) if document]


def refusal(*settings: str) -> str:
    """What Helm says when it refuses these values."""
    done = _template(settings, CHART, [])
    assert done.returncode != 0, "Helm took these values"
    return done.stderr


def _template(
    settings: Iterable[str], chart: Path, more: list[str], release: str = RELEASE, namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    words = [word for setting in settings for word in ("--set", setting)]
    return run_helm(
        "template", release, str(chart), "--namespace", namespace, "--kube-version", KUBERNETES, *words, *more
    )


def _values_file(values: Object | None, folder: Path | None) -> list[str]:
    if values is None:
        return []
    assert folder is not None
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return ["--values", str(path)]


def only(objects: Iterable[Object], kind: str, name: str | None = None) -> Object:
    """The one object of this kind (and name)."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}, name {name}"
    return found[0]


def kinds(objects: Iterable[Object]) -> set[str]:
    return {each["kind"] for each in objects}


def operator_pod(objects: Iterable[Object]) -> Object:
    """The Deployment's pod template."""
    template: Object = only(objects, "Deployment")["spec"]["template"]
    return template


def operator_container(objects: Iterable[Object]) -> Object:
    containers = operator_pod(objects)["spec"]["containers"]
    assert len(containers) == 1
    container: Object = containers[0]
    return container
