"""What a kubelet says when it evicts a pod: the node was short of something, or the pod went over a limit of its own.

Asked where pods and their events are read, by `phrases.py` and by `ends/pod_ends.py`. The first is the machine's doing,
the second a failure of the job, with a field that mends it. The sentences are those of the kubelet's eviction manager
(pkg/kubelet/eviction).
"""

from __future__ import annotations

import re

from trainjob_api import contract

EVICTED = "Evicted"
"""The kubelet's reason."""
_VOLUME = re.compile(r'Usage of EmptyDir volume "(?P<name>[^"]*)" exceeds the limit "(?P<limit>[^"]*)"')
_CONTAINER = re.compile(r'Container (?P<name>\S+) exceeded its local ephemeral storage limit "(?P<limit>[^"]*)"')
_POD = re.compile(r"Pod ephemeral local storage usage exceeds the total limit of containers (?P<limit>\S+?)\.?(?:\s|$)")
_STAGING = "it holds about two checkpoints of a worker"
_OR_LESS = ", which staged checkpoints count against (about two of a worker)"


def over_own_limit(message: str | None) -> str | None:
    """What went over which limit, and the field that raises it; None: the pod was over none."""
    text = message or ""
    if found := _VOLUME.search(text):
        name, limit = found["name"], found["limit"]
        if name == contract.WORK_VOLUME:
            return f"its staging volume grew beyond {limit}: raise spec.checkpoint.staging.sizeLimit, {_STAGING}"
        return f"its volume {name} grew beyond {limit}: raise emptyDir.sizeLimit of that volume in spec.template"
    if found := _CONTAINER.search(text):
        return (
            f"container {found['name']} grew beyond its {found['limit']} of ephemeral storage: raise "
            f"resources.limits.ephemeral-storage of that container in spec.template{_OR_LESS}"
        )
    if found := _POD.search(text):
        return (
            f"it grew beyond its {found['limit']} of ephemeral storage: raise resources.limits.ephemeral-storage of "
            f"its containers in spec.template{_OR_LESS}"
        )
    return None
