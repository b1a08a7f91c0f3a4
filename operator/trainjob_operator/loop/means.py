"""What the loop works with, and who hears of what it does; made where the operator is put together."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import Cluster, JobKey
from trainjob_operator.loop.neighbours import Agents


@dataclass(frozen=True, kw_only=True)
class Means:
    """By which jobs are read and written, agents heard, time told, chance drawn, and things said."""

    cluster: Cluster
    agents: Agents
    clock: Clock
    rng: random.Random = field(default_factory=random.Random)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger(__name__.rpartition(".")[0]))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn that is over."""

    key: JobKey
    seconds: float
    outcome: str = "error"
    """ok | conflict | error"""
    job: TrainJob | None = None
    """As it stands after an `ok` turn."""

    @property
    def gone(self) -> bool:
        """A read found no such job."""
        return self.outcome == "ok" and self.job is None


@dataclass(frozen=True, kw_only=True)
class Hears:
    """The launcher's view, the operator's metrics."""

    on_job: Callable[[TrainJob], object] = lambda job: None
    """Each job as it is committed, by a turn or with mere progress."""
    on_turn: Callable[[Turn], object] = lambda turn: None
    """Each turn, failed ones included."""
