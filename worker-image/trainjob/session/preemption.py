"""What get_preemption_info() answers. Exported lazily by `trainjob`."""

from __future__ import annotations

import time
from typing import Dict, List, NamedTuple, Optional

from trainjob_api.rank_messages import Preemption


class PreemptionInfo(NamedTuple):
    """Workers that are about to be taken away. A node of Ray's is a worker here, named by its pod.

    ```python
    info = trainjob.get_preemption_info()
    if info is not None and info.preempted_ranks:
        print("about to go:", info.preempted_node_ids, "in seconds:", info.seconds_left())
        trainjob.report(metrics, checkpoint=Checkpoint.from_dict(state), step=step)
    ```
    """

    deadline_ms: Optional[int]
    """When the first of them is gone, in milliseconds since the epoch; None: it is announced, and nobody knows when."""
    preempted_node_to_ranks: Dict[str, List[int]]
    """The ranks of each worker that is to go."""
    preempted_node_ids: List[str]
    """The workers, by name."""
    preempted_ranks: List[int]
    """All their ranks."""
    this_rank: bool
    """Whether the calling rank is one of them."""

    @classmethod
    def of(cls, told: Preemption, rank: int) -> PreemptionInfo:
        """As the ranks are told it."""
        workers = {name: list(told.workers[name]) for name in sorted(told.workers)}
        ranks = sorted(one for theirs in workers.values() for one in theirs)
        deadline = None if told.gone_at is None else int(told.gone_at * 1000)
        return cls(deadline, workers, list(workers), ranks, rank in ranks)

    def seconds_left(self) -> Optional[float]:
        """Until the deadline, by this machine's clock, at least 0; the last ten of them are for storing what is saved.
        None: nobody knows.
        """
        return None if self.deadline_ms is None else max(0.0, self.deadline_ms / 1000 - time.time())
