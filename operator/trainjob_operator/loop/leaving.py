"""Nodes that are about to be taken away, as the watch told it: what their pods are given as a notice.

Kept by the reconciler. A pod that is being deleted needs no notice: it has its own time. Nor does one that came to the
node when the notice stood: it tolerates that taint, and to replace it would only bring the next one there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from trainjob_operator.cluster import NodeSeen
from trainjob_operator.core.model import PodView
from trainjob_operator.core.moments import after, aware

CLOCKS_S = 5.0
"""Moments of the API server come in whole seconds, and by its clock."""


@dataclass(frozen=True)
class _Notice:
    why: str
    since: datetime
    """When it was first heard."""


class Leaving:
    """Of all nodes."""

    def __init__(self) -> None:
        self._notices: dict[str, _Notice] = {}
        self._earlier: dict[str, _Notice] = {}
        """As they stood before the present watch."""

    def begin(self) -> None:
        """All that leave are told anew: of the others, that they stay may never have been heard."""
        self._notices, self._earlier = {}, self._notices

    def told(self, node: NodeSeen, now: datetime) -> bool:
        """Whether that is news."""
        before, earlier = self._notices.pop(node.name, None), self._earlier.pop(node.name, None)
        if node.leaving is not None:
            known = before or earlier
            self._notices[node.name] = _Notice(node.leaving, now if known is None else known.since)
        return (None if before is None else before.why) != node.leaving

    def with_notices(self, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
        """The pods, those on such nodes knowing it."""
        return tuple(self._noticed(pods)) if self._notices else pods

    def _noticed(self, pods: Iterable[PodView]) -> Iterable[PodView]:
        for pod in pods:
            notice = self._notices.get(pod.node or "")
            yield pod if notice is None or pod.deleting or _came_later(pod, notice) else replace(pod, notice=notice.why)


def _came_later(pod: PodView, notice: _Notice) -> bool:
    return pod.scheduled_at is not None and aware(pod.scheduled_at) > after(notice.since, CLOCKS_S)
