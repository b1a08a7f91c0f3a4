"""What the watch has told of jobs and their children, so that a turn that finds nothing to do asks the API server for
nothing.

Kept by the reconciler and fed by `Cluster.watch`, by the lists of turns, and by the answers to our own writes. Of two
states of one object the one with the higher resourceVersion counts, in whatever order they come. A job's pods count
once they were listed: by the watch, up to its `Mark.COMPLETE`, or by a turn (`Reading`); what is told meanwhile is
merged. When in doubt (a gap in the watch, an answer that did not come, a refused write) all of a job is dropped, and
its next turn reads. The reconciler fences what it does about it: a write by the job's resourceVersion, and a create by
the write that lists its slot, or, of a slot that was listed before, by a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey, Manifest, Seen
from trainjob_operator.core.model import PodView
from trainjob_operator.loop.departed import Departed
from trainjob_operator.loop.known_job import (
    READ_AGAIN_S,
    KnownJob,
    Writing,
    is_at_rest,
    packed,
    version_of,
    wish_in,
    wish_of,
)
from trainjob_operator.loop.known_services import KnownServices
from trainjob_operator.loop.observe import Served, Sight, in_order
from trainjob_operator.manifests import pod_view_of


class Known:
    """All jobs."""

    def __init__(self) -> None:
        self._entries: dict[JobKey, KnownJob] = {}
        self._readings: dict[JobKey, Reading] = {}
        self._writings: dict[JobKey, Writing] = {}
        self._newest: dict[JobKey, int] = {}
        """Version of the newest state of each job that we have seen: no older one is taken, of it or of a job that bore
        the name before, whatever is lost meanwhile. Agents act on our word of it.
        """
        self._filling = False
        self._departed = Departed()
        self._services = KnownServices()

    # --- Told by the watch --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The watch begins, or had a gap: what was told is void, and everything there is will be told."""
        self._entries.clear()
        self._services.begin()
        for reading in self._readings.values():
            reading.void = True
        self._filling = True

    def complete(self, now: float) -> list[JobKey]:
        """Everything was told; the jobs there are, those at rest last."""
        self._filling = False
        for entry in self._entries.values():
            entry.listed_at = now
        return sorted(self._entries, key=lambda key: (self._entries[key].at_rest, key))

    def told(self, seen: Seen) -> bool:
        """One object as it is now; whether that is news. What is told before all was is none: `complete` names it."""
        told = {contract.KIND: self._job_told, "Pod": self._pod_told, "Service": self._services.told}
        news = told[seen.kind](seen)
        return news and not self._filling

    def _job_told(self, seen: Seen) -> bool:
        metadata, entry = seen.manifest["metadata"], self._entries.get(seen.key)
        writing = self._writings.get(seen.key)
        wish = wish_in(metadata)
        if writing is not None and entry is not None and not seen.gone and wish == entry.wish:
            writing.told.append(seen)
            return False
        version = version_of(metadata)
        if version < self._newest.get(seen.key, 0):
            return False
        self._see(seen.key, version)
        if entry is None or entry.uid != metadata["uid"]:
            if not seen.gone:
                at_rest = is_at_rest(seen.manifest)
                self._entries[seen.key] = KnownJob(
                    metadata["uid"], version, wish, packed(seen.manifest), at_rest=at_rest
                )
            return True
        if seen.gone:
            del self._entries[seen.key]
            return True
        if version > entry.version or (version == entry.version and not entry.stored):
            news = version > entry.version
            entry.version, entry.stored, entry.at_rest = version, packed(seen.manifest), is_at_rest(seen.manifest)
            entry.wish = wish
            entry.job = None if news or (entry.job and entry.job.status.finished) else entry.job
            return news
        return False

    def _pod_told(self, seen: Seen) -> bool:
        uid = seen.manifest["metadata"]["uid"]
        if seen.key in self._readings:
            self._readings[seen.key].note(uid, seen)
        if seen.gone:
            self._departed.note(seen.key, seen.manifest)
        entry = self._entries.get(seen.key)
        if entry is None:
            return True
        if seen.gone:
            return entry.drop(seen.key[1], seen.manifest) or entry.listed_at is None
        return self._put(entry, seen.key, seen.manifest)

    # --- Told by turns ------------------------------------------------------------------------------------------------

    def written(self, job: TrainJob) -> None:
        """Our own status write was answered with this."""
        entry, version = self._entries.get(job.key), int(job.metadata.resource_version)
        self._see(job.key, version)
        if entry is not None and entry.uid == job.metadata.uid and version > entry.version:
            entry.version, entry.job, entry.stored = version, job, b""

    @contextmanager
    def writing(self, key: JobKey) -> Iterator[Writing]:
        """While a status write of ours is under way."""
        writing = Writing()
        hears = self._writings.setdefault(key, writing) is writing
        try:
            yield writing
        finally:
            if hears:
                del self._writings[key]
                for seen in writing.told:
                    writing.news = self.told(seen) or writing.news

    def created(self, key: JobKey, pods: Iterable[Manifest]) -> None:
        """Pods that we created, as the API server answered."""
        for pod in pods:
            self._pod_told(Seen("Pod", key, pod))

    def served(self, key: JobKey, service: Manifest | None, now: float) -> None:
        """Its Service was read, made or put right; None: there is none."""
        self._services.read(key, service, now)

    def doubt(self, key: JobKey) -> None:
        """Something may be other than it was told: the next turn reads everything."""
        self._entries.pop(key, None)
        if key in self._readings:
            self._readings[key].void = True

    def gone(self, key: JobKey) -> None:
        """A read found no such job."""
        self.doubt(key)
        self._newest.pop(key, None)
        self._departed.forget(key)
        self._services.forget(key)

    def leave(self, key: JobKey) -> None:
        """The job is another's to look after: what it is good for alone is not kept."""
        self._departed.forget(key)

    def _see(self, key: JobKey, version: int) -> None:
        self._newest[key] = max(version, self._newest.get(key, 0))

    def rest(self, key: JobKey) -> None:
        """The turn is over: a finished job is kept small until its next one."""
        entry = self._entries.get(key)
        if entry is None or entry.job is None:
            return
        self._departed.keep(entry.job)
        if entry.stored and entry.job.status.finished:
            entry.job = None

    # --- Asked by turns -----------------------------------------------------------------------------------------------

    def has(self, key: JobKey) -> bool:
        """Whether the job was told, or read, and is not gone."""
        return key in self._entries

    def job(self, key: JobKey) -> TrainJob | None:
        """As it was told last; None: it was not. Raises UnreadableJob."""
        entry = self._entries.get(key)
        return entry.read() if entry is not None else None

    def sight(self, key: JobKey, now: float) -> Sight | None:
        """What is known of the job and its children; None: it must be read. Raises UnreadableJob."""
        entry = self._entries.get(key)
        if entry is None or self._filling:
            return None
        return entry.sight(now, self._went, self._services.of)

    def service(self, job: TrainJob, now: float) -> Served | None:
        """Its Service, where that need not be read again for its own sake."""
        served = self._services.of(job, now)
        is_good = served.service is not None and served.service.owned and served.age_s < READ_AGAIN_S
        return served if is_good else None

    def _went(self, job: TrainJob, pods: Iterable[PodView]) -> Mapping[int, PodView]:
        there = {pod.name for pod in pods}
        return {slot: pod for slot, pod in self._departed.members(job).items() if pod.name not in there}

    def on_node(self, name: str) -> list[JobKey]:
        """Jobs with a pod there, as far as is known."""
        return [
            key for key, entry in self._entries.items() if any(pod.view.node == name for pod in entry.pods.values())
        ]

    def is_listed(self, key: JobKey) -> bool:
        """Whether the job and all its pods were told, and no doubt has come upon them."""
        entry = self._entries.get(key)
        return entry is not None and entry.listed_at is not None and not self._filling

    def went(self, key: JobKey) -> frozenset[str]:
        """Names of pods that were deleted, and are not worth a look."""
        return self._departed.names(key)

    def with_departed(self, sight: Sight) -> Sight:
        """What was read, with the members that no read shows any more."""
        return replace(sight, went=self._went(sight.job, sight.pods))

    def reading(self, key: JobKey) -> Reading:
        """A turn is about to list the job's pods: `with known.reading(key) as reading`."""
        return Reading(self, key)

    # --- Inside, for Reading ------------------------------------------------------------------------------------------

    def _begin(self, reading: Reading) -> None:
        self._readings[reading.key] = reading

    def _end(self, reading: Reading) -> None:
        if self._readings.get(reading.key) is reading:
            del self._readings[reading.key]

    def _take(self, reading: Reading, sight: Sight, manifests: Iterable[Manifest], now: float) -> None:
        job, key = sight.job, reading.key
        before, version = self._entries.get(key), int(job.metadata.resource_version)
        self._see(key, version)
        if before is not None and before.uid != job.metadata.uid:
            if before.version > version:
                return
            del self._entries[key]  # what was told is of a job that bore the name before
            before = None
        if reading.void:
            return
        entry = KnownJob(job.metadata.uid, version, wish_of(job.metadata), job=job)
        if before is not None and before.version >= entry.version:
            entry.version, entry.wish = before.version, before.wish
            entry.stored, entry.job = before.stored, before.job
        if self._newest[key] > entry.version:
            return  # written meanwhile, and the watch has not told of it yet
        for manifest in (*manifests, *reading.told):
            if manifest["metadata"]["uid"] not in reading.gone:
                self._put(entry, key, manifest)
        entry.listed_at = now
        self._entries[key] = entry

    def _take_job(self, reading: Reading, manifest: Manifest) -> None:
        # While all is told again, an entry made here would count as listed without the pods that were told before it.
        if not reading.void and not self._filling and reading.key not in self._entries:
            self._job_told(Seen(contract.KIND, reading.key, manifest))

    def _put(self, entry: KnownJob, key: JobKey, manifest: Manifest) -> bool:
        """Whether it is newer than what is known."""
        view = entry.put(key[1], manifest)
        if view is not None:
            self._departed.there(key, manifest, view)
        return view is not None


class Reading:
    """One list under way: it hears of what is told meanwhile."""

    def __init__(self, known: Known, key: JobKey) -> None:
        self.key = key
        self.void = False
        """What it brings may not be kept: there was a gap meanwhile."""
        self.gone: set[str] = set()
        """UIDs of pods that went meanwhile: the list may still show them."""
        self.told: list[Manifest] = []
        """Pods that came or changed meanwhile: the list may not show them yet."""
        self._known = known

    def note(self, uid: str, seen: Seen) -> None:
        """Something of a pod was told."""
        if seen.gone:
            self.gone.add(uid)
        else:
            self.told.append(seen.manifest)

    def __enter__(self) -> Reading:
        self._known._begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._known._end(self)

    def with_told(self, sight: Sight) -> Sight:
        """What was read, with the pods that came meanwhile: the list may be older than they are, and whoever is not in
        it would be taken for gone.
        """
        there, name = {pod.uid for pod in sight.pods}, self.key[1]
        came = {pod["metadata"]["uid"]: pod for pod in self.told}
        views = [pod_view_of(came[uid], name, sight.job.metadata.uid) for uid in came.keys() - there - self.gone]
        return replace(sight, pods=in_order((*sight.pods, *views))) if views else sight

    def take(self, sight: Sight, manifests: Iterable[Manifest], now: float) -> None:
        """What was read is known from now on, together with what was told meanwhile."""
        self._known._take(self, sight, manifests, now)

    def take_job(self, manifest: Manifest) -> None:
        """The job alone was read: it is known from now on, its pods are not."""
        self._known._take_job(self, manifest)
