"""A local job that is edited, and loses pods, while it runs: put in the place of `drive.MemoryCluster`."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from trainjob_operator.cluster import Manifest
from trainjob_operator.memory import MemoryCluster


class Edited(MemoryCluster):
    """What a user, or a node that is drained, does to the job of `run_job`; from any thread."""

    newest: Edited

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._running = asyncio.get_running_loop()
        self.exit_codes: list[int] = []
        """Of the pods that have ended, in order."""
        Edited.newest = self

    def edit(self, name: str = "job", **spec: object) -> None:
        """Change its spec."""
        self._running.call_soon_threadsafe(lambda: self.update_job_spec("default", name, spec))

    def evict(self, slot: int, grace_s: int, name: str = "job") -> None:
        """Its pod gets the condition that an eviction sets, and is deleted."""
        self._running.call_soon_threadsafe(self._evict, f"{name}-{slot}", grace_s)

    def delete(self, pod: str, grace_s: int = 30) -> None:
        """As `kubectl delete pod` does."""
        self._running.call_soon_threadsafe(self.remove_pod, "default", pod, grace_s)

    def _evict(self, pod: str, grace_s: int) -> None:
        status = copy.deepcopy(next(each["status"] for each in self.pods() if each["metadata"]["name"] == pod))
        status["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"})
        self.set_pod_status("default", pod, status)
        self.remove_pod("default", pod, grace_s)

    def set_pod_status(self, namespace: str, name: str, status: Manifest) -> Manifest:
        """The kubelet's word."""
        states = [container["state"] for container in status.get("containerStatuses") or ()]
        self.exit_codes += [state["terminated"]["exitCode"] for state in states if "terminated" in state]
        return super().set_pod_status(namespace, name, status)
