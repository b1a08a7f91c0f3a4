"""`make push` builds all images and brings them to a registry."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cluster import images
from support import e2e
from support.registry import registry

PUSH_S = 900


@pytest.mark.timeout(PUSH_S)
def test_push_brings_all_images_to_the_registry() -> None:
    if not e2e.has_own_nodes():
        pytest.skip("no container engine of the test cluster on this machine")
    with registry() as there:
        words = [sys.executable, "-m", "cluster", "push", "--registry", f"{there.address}/team", "--tag", "1.2.3"]
        done = subprocess.run(
            words, cwd=images.ROOT / "tests", capture_output=True, text=True, timeout=PUSH_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [f"{there.address}/team/{image.name}:1.2.3" for image in images.IMAGES]
        assert sorted(there.manifests) == sorted(f"team/{image.name}:1.2.3" for image in images.IMAGES)
        for manifest in there.manifests.values():
            assert all(layer["digest"] in there.blobs for layer in json.loads(manifest)["layers"])


def test_push_without_a_registry_says_what_is_missing() -> None:
    words = [sys.executable, "-m", "cluster", "push", "--registry", "", "--tag", ""]
    done = subprocess.run(
        words, cwd=images.ROOT / "tests", capture_output=True, text=True, timeout=e2e.PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "make push REGISTRY=registry.example.org/team TAG=0.1.0" in done.stderr
