"""Follows a job on a cluster: its state as it changes, and its ranks' lines, as one stream of events.

Called by `tj logs -f`, `tj submit --wait`, `tj status --watch` and the trainer's Kubernetes backend. An API server that
is away is waited for; pods are followed as they come and go.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from trainjob.launch.cluster import jobs_api, pod_log
from trainjob.launch.cluster.api import Api, ApiError, Manifest
from trainjob.launch.outcome import log_choice as ranks
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob

POLL_S = 1.0
LAST_WORDS_S = 10.0
"""How long the logs of a finished job are waited for: its pods end a moment after it."""
PODS_LIMIT = 256
"""Pods whose logs are followed at once."""
LINES_WAITING = 10_000
"""Lines that wait to be taken; then the readers pause."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """Something new about a job."""

    kind: Literal["status", "line", "note", "away", "gone"]
    """status: `job` was read (again); line: a rank wrote `text`; note: about the following itself; away: no answer;
    gone: the job was deleted.
    """
    text: str = ""
    job: TrainJob | None = None
    cancelled: bool = False
    """status: `tj cancel` stopped the job."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to follow."""

    namespace: str
    name: str
    logs: bool = False
    selection: ranks.Selection | None = None
    """Whose lines; None: as many as `ranks.usual` says."""
    tail: int | None = None
    """Of each pod that is there already; None: from its beginning."""


def follow(
    api: Api,
    wanted: Wanted,
    *,
    until: Callable[[TrainJob], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Update]:
    """Updates until the job finished and its last lines were read, was cancelled or deleted, or `until` says so of
    its state.
    """
    with contextlib.closing(_Follower(api, wanted)) as follower:
        yield from follower.run(until or (lambda job: False), clock)


class _Follower:
    def __init__(self, api: Api, wanted: Wanted) -> None:
        self._api, self._wanted = api, wanted
        self._lines: queue.Queue[Update] = queue.Queue(LINES_WAITING)
        self._stopped = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._job: TrainJob | None = None
        self._uid = ""
        self._tail = wanted.tail
        self._short = False
        """Of threads; it is said once."""

    def close(self) -> None:
        """Let the readers end; they are daemons and hold nothing but a connection."""
        self._stopped.set()

    def run(self, until: Callable[[TrainJob], bool], clock: Callable[[], float]) -> Iterator[Update]:
        """See `follow`."""
        away = False
        deadline: float | None = None
        while True:
            try:
                manifest = jobs_api.get(self._api, self._wanted.namespace, self._wanted.name)
                pods = jobs_api.pods(self._api, self._wanted.namespace, self._wanted.name) if self._wanted.logs else []
            except ApiError as error:
                if error.absent and self._uid:
                    yield from self._drain(0.0)
                    yield Update(kind="gone", text=f"{self._wanted.name} was deleted")
                    return
                if not error.passing or not self._uid:
                    raise
                if not away:
                    yield Update(kind="note", text=f"the API server gives no answer; trying again ({error})")
                away = True
                yield Update(kind="away")
                yield from self._drain(POLL_S)
                continue
            if away:
                yield Update(kind="note", text="the API server answers again")
            away = False
            if self._uid and manifest["metadata"]["uid"] != self._uid:
                yield from self._drain(0.0)
                yield Update(kind="gone", text=f"{self._wanted.name} was deleted, and there is a new one of that name")
                return
            update = self._seen(manifest)
            yield update
            assert update.job is not None
            yield from self._attend(update.job, pods)
            if update.cancelled or until(update.job) or (update.job.status.finished and not self._wanted.logs):
                yield from self._drain(0.0)
                return
            if update.job.status.finished:
                deadline = deadline or clock() + LAST_WORDS_S
                if clock() >= deadline or not any(thread.is_alive() for thread in self._threads.values()):
                    yield from self._drain(0.0)
                    return
            yield from self._drain(POLL_S)

    def _seen(self, manifest: Manifest) -> Update:
        self._uid = manifest["metadata"]["uid"]
        self._job = jobs_api.read(manifest)
        return Update(kind="status", job=self._job, cancelled=jobs_api.cancelled(manifest))

    def _attend(self, job: TrainJob, pods: list[Manifest]) -> Iterator[Update]:
        """Start a reader for each pod that has become of interest."""
        selection = self._selection(job)
        for pod in pods:
            uid, slot = pod["metadata"]["uid"], jobs_api.slot(pod)
            alive = sum(thread.is_alive() for thread in self._threads.values())
            if (
                uid in self._threads
                or alive >= PODS_LIMIT
                or not ranks.concerns(job, slot, selection)
                or not _of(job, pod)
            ):
                continue
            what = pod_log.target(pod)
            reader = pod_log.PodLog(self._api, what, tail=self._tail, stopped=self._stopped)
            thread = threading.Thread(
                target=self._read, args=(reader, slot, what.pod), name=f"log of {what.pod}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # this machine has no room for one: tried again at the next look
                if not self._short:
                    self._short = True
                    yield Update(kind="note", text=f"not every log can be followed now: {error}")
                return
            self._threads[uid] = thread
        self._tail = None  # pods that come later are read from their beginning

    def _selection(self, job: TrainJob) -> ranks.Selection:
        return self._wanted.selection or ranks.usual(job)

    def _read(self, reader: pod_log.PodLog, slot: int, pod: str) -> None:
        """A reader's thread. One that can go on no longer says so: its lines would be missed by nobody."""
        try:
            reader.follow(lambda line: self._take(slot, pod, line))
        except Exception as error:  # whatever it was, the others go on
            text = f"the log of {pod} is followed no longer: {type(error).__name__}: {error}"
            self._put(Update(kind="note", text=text))

    def _take(self, slot: int, pod: str, line: str) -> None:
        """A reader's line."""
        job = self._job
        assert job is not None
        first = None if defaults.uses_agent(job.spec) else ranks.first_rank(job, slot)
        text = ranks.shown(line, self._selection(job), pod=pod, index=first)
        if text is not None:
            self._put(Update(kind="line", text=text))

    def _put(self, update: Update) -> None:
        """Waits while too many are not taken."""
        while not self._stopped.is_set():
            try:
                self._lines.put(update, timeout=POLL_S)
                return
            except queue.Full:
                continue

    def _drain(self, seconds: float) -> Iterator[Update]:
        """What readers say within that time, and what is there then: those who write faster than anybody takes it keep
        nobody from the next look at the job.
        """
        end = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while (left := end - time.monotonic()) > 0:
                yield self._lines.get(timeout=left)
            for _ in range(self._lines.qsize()):
                yield self._lines.get_nowait()


def _of(job: TrainJob, pod: Manifest) -> bool:
    """Whether the pod is this object's, and no leftover of an older one of its name."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == job.metadata.uid for owner in owners)
