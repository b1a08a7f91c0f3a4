"""Keeps one running job's record and output up; `backend.py` hands it each event before the caller's listener.

Must never end a job: what cannot be written is told once, by a note, and then left.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores import volumes
from trainjob.launch.job import is_s3
from trainjob.launch.local import lock
from trainjob.launch.local.registry import earlier, presence, records
from trainjob.launch.local.registry.output import Keeper
from trainjob.launch.local.registry.presence import Presence
from trainjob.launch.local.registry.records import Record
from trainjob_api import defaults

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import TrainJob

WRITE_EVERY_S = 1.0
ENV_COMMAND = "TRAINJOB_STARTED_BY"
"""The command of the program on whose behalf this launcher runs, as JSON; absent: its own."""


class Recorder:
    """From the start to the end of one launcher's job; used in one thread. `note`: to be called from any."""

    def __init__(self, job: TrainJob, tell: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._tell, self._note = tell, note
        self._told = False
        folder = defaults.job_storage(job)
        name, namespace, pid = job.metadata.name, job.metadata.namespace, os.getpid()
        id_ = records.identity(namespace, name, folder, pid)
        beside = folder is not None and not is_s3(folder)
        output = os.path.join(str(folder) if beside else records.folder_of(id_), layout.OUTPUT)
        self.record = Record(
            name=name,
            namespace=namespace,
            folder=folder,
            command=tuple(json.loads(os.environ.get(ENV_COMMAND, "null")) or sys.orig_argv),
            cwd=os.getcwd(),
            pid=pid,
            born=lock.started(pid),
            started=time.time(),
            output=output,
            job=job.to_json(),
        )
        self._written = 0.0
        self._stale = False
        """The record on disk is older than the one here."""
        self._presence: Presence | None = None
        self._moved = False
        """The folder of storage went, and output with it."""
        self._keep_earlier()
        records.take_back_stop(self.record.id)
        self._write()
        self._keeper = Keeper(output, self.record.started)
        self._attempt = 0
        if beside:
            self._presence = Presence(str(folder), lambda: self.record.run, self._storage_changed)

    @property
    def asked_to_stop(self) -> bool:
        """Whether `tj stop` wants the job's end. From any thread."""
        return records.is_asked_to_stop(self.record.id)

    def line(self, text: str) -> None:
        """A worker wrote this."""
        if self._moved and not volumes.is_unmounted(str(self.record.folder)):
            self._moved = False
            self._keeper = Keeper(self.record.output, self.record.started)
        self._keeper.line(text, self._attempt)
        self._complain(self._keeper.trouble)

    def status(self, job: TrainJob) -> None:
        """The job changed."""
        attempt = job.status.attempt
        self._attempt = attempt.number if attempt else self._attempt
        run = attempt.run if attempt is not None and attempt.run is not None else self.record.run
        self.record = replace(self.record, job=job.to_json(), run=run)
        self._stale = True
        if job.status.finished:
            self._write()
        else:
            self.catch_up()

    @property
    def due_s(self) -> float | None:
        """Seconds until `catch_up` has something to write; None: the record says all that is known."""
        return max(0.0, self._written + WRITE_EVERY_S - time.monotonic()) if self._stale else None

    def catch_up(self) -> None:
        """Writes what `status` held back, once it is due: nothing else may come of a job that stands still."""
        if self.due_s == 0.0:
            self._write()

    def end(self, job: TrainJob | None) -> None:
        """The launcher is done with it, or could not begin (None)."""
        if self._presence is not None:
            self._presence.stop()
        status = job.status if job is not None else None
        outcome = (
            "Complete"
            if status and status.holds("Complete")
            else "Failed"
            if status is None or status.holds("Failed")
            else records.STOPPED
        )
        last = job.to_json() if job is not None else self.record.job
        self.record = replace(self.record, job=last, outcome=outcome, ended=time.time())
        self._write()
        records.take_back_stop(self.record.id)
        self._keeper.close()  # compresses, which takes a while: how it ended is known by then
        if self.record.storage_gone is not None and self.record.folder is not None:
            self._tell(presence.at_the_end(self.record.folder, self.record.storage_gone))

    def _storage_changed(self, text: str) -> None:
        """In the thread that looks; the note brings the record's turn too."""
        self._moved = self._stale = True
        self._note(text)

    def _keep_earlier(self) -> None:
        try:
            earlier.keep(self.record.id)
        except OSError as error:
            self._complain(f"the run before cannot be remembered: {error}")

    def _write(self) -> None:
        self._written = time.monotonic()
        self._stale = False
        if self._presence is not None:
            self.record = replace(self.record, storage_gone=self._presence.gone_since)
        try:
            records.write(self.record)
        except OSError as error:
            self._stale = True  # a disk that is full has room again
            self._complain(
                f"`tj list` cannot be told of this job: {records.folder_of(self.record.id)}: {error.strerror or error}"
            )

    def _complain(self, trouble: str | None) -> None:
        if trouble is not None and not self._told:
            self._told = True
            self._tell(trouble)
