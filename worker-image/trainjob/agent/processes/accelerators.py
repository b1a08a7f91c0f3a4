"""Whether this worker has accelerators, by the names in /dev. Nothing of torch: it would take seconds, and touch them.

Asked for the ranks' environment, and by `warm/choice.py`. The local backend hides those that a worker did not ask for.
"""

from __future__ import annotations

import os
import re
from typing import List, Mapping, Sequence

_DEVICES = re.compile(r"nvidia\d+|dxg|kfd|accel\d*|neuron\d+|habanalabs.*|hl\d+|davinci\d+|infiniband")
_TRIED = re.compile(r"nvidia\d+|infiniband")
"""Forks were tried with these: tests/gpu."""
_DISPLAYS = "dri"
"""Also where Intel's GPUs are; a machine without one that computes may have it."""
_NONE_VISIBLE = ("", "-1", "NoDevFiles")
VISIBLE = "CUDA_VISIBLE_DEVICES"


def names() -> List[str]:
    """What is in /dev."""
    try:
        return os.listdir("/dev")
    except OSError:
        return []


def found(in_dev: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether there is one that ranks may use."""
    return any(_DEVICES.fullmatch(name) for name in in_dev) and environ.get(VISIBLE, "all") not in _NONE_VISIBLE


def untried(in_dev: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether there is one that ranks may use, of a kind with which forks were never tried."""
    return found([name for name in in_dev if not _TRIED.fullmatch(name)], environ)


def surely_none(in_dev: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether nothing here could be one."""
    return not found(in_dev, environ) and _DISPLAYS not in in_dev
