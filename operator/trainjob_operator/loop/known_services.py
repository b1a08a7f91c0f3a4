"""Jobs' Services, as they were told, read or made last. Kept by `known.py`.

The watch selects by label: whom it has told of it goes on telling, until it tells that it is gone. That may be its
label alone, so a Service that is told to be gone must be read. One that the watch has not told of (it lost its label,
or Services may not be watched here) was as it was when it was read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey, Manifest, Seen
from trainjob_operator.loop.known_job import READ_AGAIN_S, version_of
from trainjob_operator.loop.observe import Served
from trainjob_operator.loop.services import are_alike, service_view


@dataclass(frozen=True)
class _Service:
    version: int
    uid: str
    manifest: Manifest | None
    """None: there is none."""
    read_at: float
    watched: bool = False
    """The watch tells of it: it is still as it was."""


class KnownServices:
    """Of all jobs, by the job's name, which is the Service's too."""

    def __init__(self) -> None:
        self._known: dict[JobKey, _Service] = {}

    def begin(self) -> None:
        """What was told is void."""
        self._known.clear()

    def told(self, seen: Seen) -> bool:
        """The watch tells of one; whether that is news of a job that was looked at."""
        metadata, before = seen.manifest["metadata"], self._known.get(seen.key)
        if metadata["name"] != seen.key[1]:
            return False  # somebody's own, who has given it the job's label
        version = version_of(metadata)
        if before is not None and version < before.version:
            return False
        if seen.gone:
            if before is None or before.manifest is None:
                return False
            self._known[seen.key] = _Service(version, metadata["uid"], None, -math.inf)
            return True
        if before is not None and version == before.version:
            self._known[seen.key] = replace(before, watched=before.manifest is not None)
            return False
        self._known[seen.key] = _Service(version, metadata["uid"], seen.manifest, -math.inf, watched=True)
        return before is not None and not are_alike(before.manifest, seen.manifest)

    def read(self, key: JobKey, manifest: Manifest | None, now: float) -> None:
        """It was read, made or put right; None: there is none."""
        before = self._known.get(key)
        if manifest is None:
            self._known[key] = _Service(before.version if before is not None else 0, "", None, now)
            return
        version, uid = version_of(manifest["metadata"]), manifest["metadata"]["uid"]
        if before is not None and version < before.version:
            return
        watched = before is not None and before.watched and before.uid == uid
        self._known[key] = _Service(version, uid, manifest, now, watched)

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._known.pop(key, None)

    def of(self, job: TrainJob, now: float) -> Served:
        """The job's Service, and how old that is; of one that is somebody else's it is not told when it goes."""
        known = self._known.get(job.key)
        if known is None:
            return Served(None, READ_AGAIN_S)
        view = service_view(known.manifest, job) if known.manifest is not None else None
        if known.watched:
            return Served(view, 0.0)
        foreign = view is not None and not view.owned
        return Served(view, READ_AGAIN_S if foreign else now - known.read_at)
