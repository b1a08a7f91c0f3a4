"""Nodes that are about to be taken away, as the watch told it: what their pods are given as a notice.

Kept by the reconciler. A pod that is being deleted needs no notice: it has its own time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from trainjob_operator.cluster import NodeSeen
from trainjob_operator.core.model import PodView


class Leaving:
    """Of all nodes."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def begin(self) -> None:
        """All that leave are told anew: of the others, that they stay may never have been heard."""
        self._why.clear()

    def told(self, node: NodeSeen) -> bool:
        """Whether that is news."""
        before = self._why.pop(node.name, None)
        if node.leaving is not None:
            self._why[node.name] = node.leaving
        return before != node.leaving

    def with_notices(self, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """The pods, those on such nodes knowing it."""
        return tuple(self._noticed(pods)) if self._why else pods

    def _noticed(self, pods: Iterable[PodView]) -> Iterable[PodView]:
        for pod in pods:
            why = self._why.get(pod.node or "")
            yield pod if why is None or pod.deleting else replace(pod, notice=why)
