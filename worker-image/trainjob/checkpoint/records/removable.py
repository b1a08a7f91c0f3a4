"""Which command makes room where a job's storage, a folder, is full: by the path that could not be written.

Asked by the error alone, so it raises nothing: a folder that cannot be listed has nothing to name.
"""

from __future__ import annotations

import os
from typing import List, Optional

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId

_LOCAL = "default"
"""The namespace of every job of one machine: commands name no other place for it."""


def advice(path: str) -> str:
    """`: `tj checkpoints rm NAME 1-1-1` removes its oldest checkpoint`, where there is one that may go; else empty."""
    job = _job_folder(path)
    stored = [] if job is None else _stored(job)
    if job is None or len(stored) < 2:  # the newest is what a next run resumes from
        return ""
    namespace, name = os.path.split(job)
    namespace = os.path.basename(namespace)
    where = "" if namespace == _LOCAL else f" -n {namespace}"
    return f": `tj checkpoints rm {name} {stored[0]}{where}` removes its oldest checkpoint"


def _job_folder(path: str) -> Optional[str]:
    """Of a path inside a job's folder."""
    above, name = os.path.split(path)
    while name:
        if name in (layout.CHECKPOINTS, layout.RUNS, layout.HISTORY) and os.path.isdir(
            os.path.join(above, layout.CHECKPOINTS)
        ):
            return above
        above, name = os.path.split(above)
    return None


def _stored(job: str) -> List[CheckpointId]:
    """Its checkpoints, the oldest first."""
    try:
        found = os.listdir(os.path.join(job, layout.CHECKPOINTS))
    except OSError:
        return []
    ids = []
    for name in found:
        try:
            ids.append(CheckpointId.parse(name))
        except ValueError:
            continue
    return sorted(id_ for id_ in ids if os.path.exists(os.path.join(job, layout.manifest_key(id_))))
