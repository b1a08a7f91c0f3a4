"""Failures that a restart cannot mend, told by what the rank said: a mistake in the script, not in the machine.

Asked by `budget.py` before it spends a restart. What is hopeless by its reason alone stands in `causes.py`.
"""

from __future__ import annotations

import re

from trainjob_api import contract, same_error
from trainjob_api.v1alpha1 import Failure
from trainjob_operator.core.ends.incident import Incident

_PASSING = re.compile(
    r"Connection|Timeout|timed out|HTTP|URL|SSL|OSError|Network|Unavailable|out of memory|CUDA|cuDNN|NCCL|ECC", re.I
)
"""In the last line of a traceback: the error may pass by itself, or be a machine's."""
_KILLED = re.compile(r"is killed by signal")
"""Anywhere in it: torch's word for a process of a DataLoader that the kernel ended."""
_REFUSAL = re.compile(r": (\S+: error|Error): ")
"""What argparse, absl and click write, behind the sentence of the exit code."""
_NO_TERMINAL = ("bdb.BdbQuit", "EOFError: EOF when reading a line")
"""What a debugger and input() raise where their input has ended: a rank's has from the beginning."""


def asks_for_a_terminal(incident: Incident) -> bool:
    """A debugger began in a rank (`breakpoint()`), or input() asks: each would in every attempt, without a terminal."""
    return incident.reason == contract.REASON_USER_ERROR and _last_line(incident).startswith(_NO_TERMINAL)


def starts_jobs_of_its_own(incident: Incident) -> bool:
    """Ranks call fit(): the library refuses that, and would in every attempt."""
    last = _last_line(incident)
    return (
        incident.reason == contract.REASON_USER_ERROR
        and last.startswith("trainjob.launch.errors.LaunchError: ")
        and contract.JOBS_OF_RANKS in last
    )


def resumes_from_damage(incident: Incident) -> bool:
    """resumeFrom names a checkpoint that was found damaged: every attempt is told to begin with it."""
    return incident.reason == contract.REASON_STORAGE and contract.ORIGIN_DAMAGED in incident.message


def refuses_its_arguments(incident: Incident) -> bool:
    """The script said so, in the words of its parser: it gets the same ones in every attempt. Exit code 2 alone is told
    apart only by a second attempt (`raised_again`).
    """
    refused = incident.reason == contract.REASON_EXIT and incident.exit_code == contract.REFUSED_ARGUMENTS
    return refused and _REFUSAL.search(incident.message) is not None


def raised_again(incident: Incident, before: Failure | None) -> bool:
    """A mistake in the script or in its arguments: the same exception in the same place as `before`, a sys.exit() with
    the same code there, or the exit code by which parsers of arguments refuse them. Which rank was first is chance.

    What speaks of a network or of a device is left to the budget: a server that was away twice may be there the third
    time, and a worker with a broken GPU is replaced.
    """
    if before is None:
        return False
    exited = incident.reason == before.reason == contract.REASON_EXIT
    if exited and incident.exit_code == before.exit_code == contract.REFUSED_ARGUMENTS:
        return True
    if exited and incident.exit_code != before.exit_code:
        return False
    if not incident.traceback or not (exited or incident.reason == before.reason == contract.REASON_USER_ERROR):
        return False
    # What an exit came of stands above it, if anything does: the script may have caught what would pass.
    words = incident.traceback if exited else _last_line(incident)
    if _PASSING.search(words) or _KILLED.search(incident.traceback):
        return False
    return same_error.same(incident.failure(before.attempt).traceback or "", before.traceback or "")


def raised_elsewhere(incident: Incident, before: Failure | None) -> bool:
    """A mistake in the script that two workers made in a row: neither of their machines is to blame. One that the same
    worker made twice is left to its replacement, which may be on another machine.
    """
    if before is None or not incident.traceback or incident.pod == before.pod:
        return False
    # Of arguments that are refused the place is not asked for: after a report that says too little.
    return incident.exit_code != contract.REFUSED_ARGUMENTS and raised_again(incident, before)


def _last_line(incident: Incident) -> str:
    return (incident.traceback or "").rstrip().rsplit("\n", 1)[-1]
