"""What a container's process sees: the pod's `env` resolved as a kubelet does it, over the launcher's own environment.

Pure but for reading where Python's packages lie; called by `kubelet.py`.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

import trainjob
import trainjob_api
from trainjob.launch.errors import LaunchError
from trainjob_api import contract

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_RANK_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment without what would make a worker take itself for another job's rank."""
    return {name: value for name, value in environment.items() if name not in _RANK_NAMES and not _is_wiring(name)}


def _is_wiring(name: str) -> bool:
    """Names that an agent or launcher sets; the knobs for users (`TRAINJOB_BARRIER_...`, `TRAINJOB_S3_...`) pass."""
    return name.startswith(("TRAINJOB_", "PET_", "TORCHELASTIC_")) and not name.startswith(
        ("TRAINJOB_BARRIER_", "TRAINJOB_S3_")
    )


def with_packages(environment: dict[str, str]) -> dict[str, str]:
    """This interpreter's programs first in PATH, and our packages in PYTHONPATH unless they are installed."""
    installed = {os.path.realpath(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    roots = dict.fromkeys(os.path.dirname(next(iter(package.__path__))) for package in (trainjob, trainjob_api))
    ours = [root for root in roots if os.path.realpath(root) not in installed]
    paths = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    programs = os.path.dirname(sys.executable)
    environment["PATH"] = os.pathsep.join([programs, environment.get("PATH", os.defpath)])
    if ours or paths:
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *(root for root in ours if root not in paths)])
    return environment


def container_env(pod: Mapping[str, Any], container: Mapping[str, Any], base: Mapping[str, str]) -> dict[str, str]:
    """`base` and the container's `env`, in its order, with fieldRefs and $(NAME) references resolved."""
    found: dict[str, str] = {}
    for entry in container.get("env") or ():
        name = str(entry["name"])
        if name in contract.S3_SECRET_KEYS and "secretKeyRef" in (entry.get("valueFrom") or {}):
            continue  # there are no Secrets here: the user's own credentials count
        if entry.get("value") == contract.S3_CA_FILE:
            continue  # nor ConfigMaps
        if "valueFrom" in entry:
            found[name] = _from_field(pod, name, entry["valueFrom"])
        else:
            found[name] = expand(str(entry.get("value") or ""), found)
    return {**base, **found}


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the value of an earlier variable; unknown ones stay; `$$` is a dollar sign."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else known.get(match[1], match[0]), text)


def _from_field(pod: Mapping[str, Any], name: str, source: Mapping[str, Any]) -> str:
    path = str((source.get("fieldRef") or {}).get("fieldPath", ""))
    metadata = pod.get("metadata") or {}
    if path.startswith("metadata.labels['") and path.endswith("']"):
        return str((metadata.get("labels") or {}).get(path[17:-2], ""))
    if path.startswith("metadata.annotations['") and path.endswith("']"):
        return str((metadata.get("annotations") or {}).get(path[22:-2], ""))
    known = {
        "metadata.name": metadata.get("name"),
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid"),
        "spec.nodeName": os.uname().nodename,
        "spec.serviceAccountName": "",
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
    }
    if path not in known:
        kind = next(iter(source), "nothing")
        raise LaunchError(
            f"the container's variable {name} comes from {path or kind}, which this machine cannot provide: give it "
            "a plain value for a local run"
        )
    return str(known[path] or "")
