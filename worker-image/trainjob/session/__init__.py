"""Inside a rank: the calls that user code makes while it trains (report, log, checkpoints, barrier) and a rank's boot.

Called by user code through `trainjob`, by the agent (`python -m trainjob.session.rank`) and by the launcher's worker
main. Talks to the agent in the same pod over a Unix socket and to nobody else. Must not import torch, must run on
Python 3.9 with the standard library alone, and must import nothing here: `rank.py` runs before each rank.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

stop_criterion: Optional[Callable[[Dict[str, Any]], bool]] = None
"""Set by the launcher's worker main: rank 0 asks it with each report's metrics; when it says True, every rank ends
with exit code 0 inside that report().
"""

experiment_name: Optional[str] = None
"""Set by the launcher's worker main: the run's name as the user gave it, of which the job's name is made."""

after_report: Optional[Callable[[], None]] = None
"""Set where the trainer and its rank are one process: called when a report() was released, for the trainer's callbacks.
"""


validate: Optional[Callable[[str, Any], None]] = None
"""Set by the launcher's worker main where the trainer has a ValidationConfig: rank 0 tells it of each checkpoint that
is to be validated.
"""

all_ranks = False
"""Set by the launcher's worker main: the trainer's callbacks want each rank's metrics, not rank 0's alone."""


def reset() -> None:
    """As in a process that never was a rank: for those that are many ranks in a row."""
    global stop_criterion, experiment_name, after_report, all_ranks, validate
    stop_criterion = experiment_name = after_report = validate = None
    all_ranks = False
