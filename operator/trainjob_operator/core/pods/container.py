"""The containers of a worker pod that are ours to shape: the trainer, wrapped, and the init container that brings the
agent.

Called by `objects.py`. Everything that the template says of the trainer stays, but for `command`, `args` and variables
of ours.
"""

from __future__ import annotations

from typing import Any

from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods import volumes
from trainjob_operator.core.pods.environment import container_env

RUNTIME_USER = 65532
"""Owner of the runtime folder where the pod itself would run as root; else the pod's user, or the image's (this very
one).
"""
INSTALL = "/runtime/install"
"""The program in the runtime image that copies it to a folder."""
NOT_RESTARTED = (contract.EXIT_OK, *contract.AGENT_EXITS, 126, 127, 128)
"""Exit codes that end the trainer for good: the agent's own, and those of a container that cannot be started at all."""

Manifest = dict[str, Any]


def trainer(spec: Manifest, container: Manifest, job: TrainJob, slot: int, installation: Installation) -> Manifest:
    """The template's trainer container as a worker; `spec` is the pod's."""
    made = {**container, "env": container_env(container.get("env"), job, slot, installation)}
    # The last lines of a container that fails become its pod's message, unless the template knows better.
    if not container.get("terminationMessagePath") and not container.get("terminationMessagePolicy"):
        made["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if not defaults.uses_agent(job.spec):
        return made
    made.pop("args", None)
    made["command"] = [*installation.agent_command, "--", *defaults.command_of(container)]
    made["volumeMounts"] = [
        *(container.get("volumeMounts") or []),
        *volumes.added_mounts(spec, container, job.spec.checkpoint.s3, installation),
    ]
    if installation.restart_rules and not container.get("restartPolicy"):
        # An agent that was killed (out of memory) comes back in the same pod, with its staging.
        codes = {"operator": "NotIn", "values": list(NOT_RESTARTED)}
        made |= {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": codes}]}
    return made


def runtime_container(spec: Manifest, container: Manifest, installation: Installation) -> Manifest:
    """The init container that fills RUNTIME_DIR; it passes the restricted pod security standard whatever the
    template allows itself.
    """
    security: Manifest = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if (spec.get("securityContext") or {}).get("runAsUser") == 0:
        security["runAsUser"] = RUNTIME_USER
    made: Manifest = {
        "name": contract.RUNTIME_CONTAINER,
        "image": installation.runtime_image,
        "imagePullPolicy": installation.runtime_pull_policy,
        "command": [INSTALL, contract.RUNTIME_DIR],
        "securityContext": security,
        "volumeMounts": [{"name": contract.RUNTIME_VOLUME, "mountPath": contract.RUNTIME_DIR}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    resources = _same_resources(container)
    return {**made, "resources": resources} if resources else made


def _same_resources(container: Manifest) -> Manifest:
    """The trainer's CPU and memory: it runs before the trainer, so that the pod needs no more, and its QoS class
    stays the template's.
    """
    given = container.get("resources") or {}
    taken = {
        kind: {name: given[kind][name] for name in ("cpu", "memory") if name in given[kind]}
        for kind in ("requests", "limits")
        if given.get(kind)
    }
    return {kind: amounts for kind, amounts in taken.items() if amounts}
