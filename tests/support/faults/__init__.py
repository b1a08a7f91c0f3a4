"""Faults on purpose, of real processes: a plan that reads as a story, and the hands that carry it out.

    Faults().kill(rank=1, at_step=4)
    Faults().kill(rank=1, at_step=3).raises("disk", rank=0, at=RESTORE).in_attempt(2)
    Faults(seed=7).kill().kill().terminate().every(0.0, 0.1).times(50)

`plan` says what goes wrong, in whom and when, and touches nothing. `points` is where a process meets its moments: loops
call `faults.point("step", 4)`, agents and storage children are armed at their start. `hand` strikes, from the test's
process; `clockwork` strikes by the clock. `targets` finds processes. Ranks import this package: the standard library alone.

What breaks calls instead of processes is elsewhere: `os_faults`, `s3_faults`, `cut_proxy`; the simulator's blows are
`misfortunes`.
"""

from support.faults.plan import (
    BY_STEP,
    END,
    IMPORT,
    RENDEZVOUS,
    REPORT,
    RESTORE,
    SAVE,
    STAGING,
    STEP,
    UPLOAD,
    Fault,
    Faults,
    What,
)
from support.faults.points import point

__all__ = [
    "BY_STEP",
    "END",
    "IMPORT",
    "RENDEZVOUS",
    "REPORT",
    "RESTORE",
    "SAVE",
    "STAGING",
    "STEP",
    "UPLOAD",
    "Fault",
    "Faults",
    "What",
    "point",
]
