"""Makes boto3 importable in the storage child: the image's own, else the one that the runtime image brings.

Called by `child.main` before anything else, by the process that feeds trackers where checkpoints are in a bucket, and
by nothing that runs in a user's process: what lies in this folder is for these two alone. The set is taken whole or not
at all, so that no boto3 meets a botocore that is not its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import List, Optional, Tuple

from trainjob_api import contract

OLDEST = (1, 40)
"""Of the boto3 in an image: older ones know no conditional writes and no checksums of whole objects."""


def use(beside: Optional[str] = None) -> Optional[str]:
    """Put the folder on sys.path if it is there and needed; returns it then. `beside`: the library's folder, absent:
    this one's.
    """
    library = beside or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folder = os.path.join(os.path.dirname(library), contract.RUNTIME_PACKAGES)
    if not os.path.isdir(os.path.join(folder, "boto3")) or _own() >= OLDEST:
        return None
    sys.path.insert(0, folder)
    return folder


def _own() -> Tuple[int, ...]:
    """The version of the boto3 that can be imported; () when there is none that says which it is."""
    found = importlib.util.find_spec("boto3")
    if found is None or found.origin is None:
        return ()
    site = os.path.dirname(os.path.dirname(found.origin))
    names: List[str] = os.listdir(site)
    versions = [
        tuple(int(part) for part in match.group(1).split("."))
        for match in (re.match(r"boto3-(\d+\.\d+)[.\d]*[-.]", name) for name in names)
        if match
    ]
    return max(versions, default=())
