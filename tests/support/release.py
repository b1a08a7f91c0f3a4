"""The chart's release on the cluster under test: installed with Helm as an administrator does it, and asked how it is.

TRAINJOB_HELM_ARGS has further words for each `helm upgrade --install`, for clusters whose images come from a registry.
With TRAINJOB_E2E_INSTALLED=1 the operator that runs is taken as it is: for one test again and again, and where others
use the cluster too.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import chart, e2e
from trainjob_api import contract

NAMESPACE = "trainjob-system"
RELEASE = "trainjob"
NAME = "trainjob-operator"
SELECTOR = "app.kubernetes.io/component=operator"
WITHIN_S = 240
"""A release is up or gone within this; seconds, unless the machine is busy with something else."""


def install(*settings: str, namespace: str = NAMESPACE) -> str:
    """Install or upgrade, and wait until the operator is up; what Helm says."""
    words = [word for setting in settings for word in ("--set", setting)]
    if '"status":"pending-' in chart.run_helm("status", RELEASE, "--namespace", namespace, "--output=json").stdout:
        uninstall(namespace)  # an installation that was killed half-way; Helm would wait for it for ever
    more = shlex.split(os.environ.get("TRAINJOB_HELM_ARGS", ""))
    words += ["--namespace", namespace, "--create-namespace", "--wait", f"--timeout={WITHIN_S}s"]
    done = chart.run_helm("upgrade", "--install", RELEASE, str(chart.CHART), *more, *words, timeout_s=WITHIN_S + 30)
    assert done.returncode == 0, f"{done.stderr}\n{what_it_says(namespace)}"
    return done.stdout


def uninstall(namespace: str = NAMESPACE) -> None:
    """Take the release away; the operator's pods are gone when this returns."""
    done = chart.run_helm(
        "uninstall", RELEASE, "--namespace", namespace, "--ignore-not-found", "--wait", timeout_s=WITHIN_S + 30
    )
    assert done.returncode == 0, done.stderr
    e2e.eventually("the operator's pods are gone", lambda: not pods(namespace))


def pods(namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The operator's pods, those included that are on their way out."""
    return e2e.listed("pods", namespace, SELECTOR)


def leader(namespace: str = NAMESPACE) -> str:
    """The pod that holds the Lease; empty: none."""
    return str(e2e.get("lease", contract.LEASE_NAME, namespace)["spec"].get("holderIdentity") or "")


def what_it_says(namespace: str = NAMESPACE) -> str:
    """The ends of the operator's logs."""
    try:
        return e2e.kubectl("logs", "-n", namespace, "-l", SELECTOR, "--tail=60", "--prefix")
    except e2e.KubectlError as error:
        return str(error)


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A release of the chart as it stands here, rolled out anew so that it runs the images that are loaded now. It
    is left in place.
    """
    if not os.environ.get("TRAINJOB_E2E_INSTALLED"):
        _roll_out(tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else None)
    yield


@functools.cache
def _roll_out(shared: Path | None) -> None:
    """Once in a session: pytest takes a fixture that several modules import for several fixtures. `shared`: a folder
    of all workers of this run.
    """
    if shared is None:
        install(f"podAnnotations.rolled-out={uuid.uuid4().hex}")
        return
    with open(shared / "rolled-out", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.seek(0, os.SEEK_END) == 0:  # while this one waited, another may have written
            install(f"podAnnotations.rolled-out={uuid.uuid4().hex}")
            file.write("done")
