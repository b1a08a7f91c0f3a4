"""The records themselves: `$XDG_STATE_HOME/trainjob/jobs/<id>/job.json`, each written whole and by its launcher alone.

The id is made of the job's folder on storage, so that a name that stores in two places is two jobs. Whether a job runs
is never read from a record: the name's lock says so. How it ended is, where its launcher wrote that; else its last
status and its folder tell. Called by the launcher and by the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainjob.checkpoint.records import layout
from trainjob.launch.job import is_s3
from trainjob.launch.local import lock

VERSION = 1
FILE = "job.json"
STOP_FILE = "stop"
LAUNCHER_LOG = "launcher-{pid}.log"
"""What a detached launcher says; the pid is that of the command that started it."""
RUNNING, ENDING, STOPPED, KILLED = "Running", "Ending", "Stopped", "Killed"
STOPPING = "Stopping"
"""It runs, and was told to stop: its ranks end, what they saved is stored."""
RESTARTING = "Restarting"
"""It runs: an attempt has ended, the next one is on its way. The phase of that name."""
STATES = (RUNNING, RESTARTING, STOPPING, ENDING, "Complete", "Failed", STOPPED, KILLED)
"""As they are shown. Told by the lock; Ending: its launcher is gone, its agents still store something."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One job of this machine, as its launcher last wrote it."""

    name: str
    namespace: str
    folder: str | None
    """The job's folder on storage; None for a job without storage."""
    command: tuple[str, ...] = ()
    """How it was started: `tj run ...`, `python train.py`."""
    cwd: str = ""
    pid: int = 0
    born: str = ""
    """When the kernel started that process, so that its number is told apart when it is used again."""
    started: float = 0.0
    """Seconds since the epoch, as the next one."""
    ended: float | None = None
    outcome: str | None = None
    """Complete | Failed | Stopped, of an earlier run also Killed; None: it runs, or its launcher could not say."""
    output: str = ""
    """The folder of what its ranks wrote."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """The TrainJob as it was last, as JSON."""
    storage_gone: float | None = None
    """Since when its folder is not the one in which the run began; seconds since the epoch."""
    run: int | None = None
    """Its number among the runs of its folder; None: it never came to storage, or an older version wrote it."""

    @property
    def id(self) -> str:
        """The record's name in the state folder."""
        return identity(self.namespace, self.name, self.folder, self.pid)

    @property
    def number(self) -> int | None:
        """The run's, as far as it is known; where the record was written last before that, as its folder has it."""
        attempt = (self.job.get("status") or {}).get("attempt") or {}
        told = attempt.get("run") if self.run is None else self.run
        return told if isinstance(told, int) else self._claimed() if self.outcome is None else None

    def _claimed(self) -> int | None:
        """The newest run of its folder, if it is this job's."""
        from trainjob.checkpoint.errors import StoreError  # here: hardly a record needs it
        from trainjob.checkpoint.reading import runs
        from trainjob.checkpoint.stores.opening import open_store

        uid = (self.job.get("metadata") or {}).get("uid")
        if uid is None or self.folder is None or is_s3(self.folder):
            return None
        try:
            store = open_store(self.folder)
            newest = max(runs.numbers(store), default=None)
            claim = None if newest is None else runs.read_claim(store, newest)
        except StoreError:
            return None
        return newest if claim is not None and claim.job_uid == uid else None

    @property
    def state(self) -> str:
        """Running, Ending, Complete, Failed, Stopped or Killed (its launcher vanished; its checkpoints count)."""
        if self.outcome is not None:
            return self.outcome
        works = self.folder is not None and lock.held(self.folder)
        if self.lives if works or self.folder is None else self.has_lock:
            return RUNNING
        last = self._since()
        return last.outcome or (ENDING if works else last.end_without_word or KILLED)

    @property
    def as_it_stands(self) -> Record:
        """Of a job that has ended since this was read, as its launcher wrote it then: with the job as it was last."""
        return self if self.outcome is not None or self.state in (RUNNING, ENDING) else self._since()

    def _since(self) -> Record:
        """As its launcher has written it since this was read, before it let go of the lock."""
        newest = read(os.path.join(folder_of(self.id), FILE))
        return newest if isinstance(newest, Record) and newest.started == self.started else self

    @property
    def end_without_word(self) -> str | None:
        """Complete or Failed, of a job that came to its end when its launcher could not write an outcome any more."""
        status = self.job.get("status")
        told = status.get("conditions") if isinstance(status, dict) else None
        for each in told if isinstance(told, list) else ():
            if isinstance(each, dict) and each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
                return str(each["type"])
        return "Complete" if self.is_stored_as_complete else None

    @property
    def is_stored_as_complete(self) -> bool:
        """Whether the workers wrote into its folder that this run completed. Not asked of a bucket, which may be slow
        or away: `tj list` asks for many jobs.
        """
        if self.folder is None or is_s3(self.folder) or self.number is None:
            return False
        return os.path.exists(os.path.join(self.folder, layout.end_key(self.number)))

    @property
    def shown_state(self) -> str:
        """The state, and of a running one whether it is to stop, or is between two attempts."""
        state = self.state
        if state != RUNNING:
            return state
        if (self.job.get("spec") or {}).get("suspend") or is_asked_to_stop(self.id):
            return STOPPING
        return RESTARTING if (self.job.get("status") or {}).get("phase") == RESTARTING else state

    @property
    def has_lock(self) -> bool:
        """Whether the launcher that wrote this has the name's lock, also where only it can see the file."""
        return self.folder is not None and self.lives and lock.holds(self.pid, self.folder)

    @property
    def lives(self) -> bool:
        """Whether the launcher that wrote this is there."""
        return bool(self.born) and lock.started(self.pid) == self.born


@dataclass(frozen=True)
class Unreadable:
    """A record that cannot be read; its job's data are where they were."""

    path: str
    why: str


def identity(namespace: str, name: str, folder: str | None, pid: int) -> str:
    """The same for each run of a name in one place; a job without storage is never gone on with."""
    place = f"{namespace}/{name}/{pid}" if folder is None else folder if is_s3(folder) else os.path.realpath(folder)
    return f"{name[:40]}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def state_folder(environ: Mapping[str, str] | None = None) -> str:
    """`$XDG_STATE_HOME/trainjob`, else `~/.local/state/trainjob`; a relative XDG_STATE_HOME does not count."""
    given = (os.environ if environ is None else environ).get("XDG_STATE_HOME", "")
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.local/state"), "trainjob")


def folder_of(id_: str) -> str:
    """A record's folder."""
    return os.path.join(state_folder(), "jobs", id_)


def as_it_ended(record: Record) -> Record:
    """Of a run whose launcher is gone, which the name's lock tells no more once another run has it."""
    if record.outcome is not None:
        return record
    return replace(record, run=record.number, outcome=record.end_without_word or KILLED)


def write(record: Record) -> None:
    """The newest run's. Whole, or not at all. Raises OSError."""
    folder = folder_of(record.id)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_to(os.path.join(folder, FILE), record)


def write_to(path: str, record: Record) -> None:
    """Whole, or not at all. Raises OSError."""
    content = {"version": VERSION, **{name: value for name, value in vars(record).items() if value is not None}}
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(part, path)
    except OSError:
        _unlink(part)
        raise


def read(path: str) -> Record | Unreadable | None:
    """The record in that file; None when there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
        if found.pop("version", None) != VERSION:
            raise ValueError("another version of trainjob wrote it")
        known = Record.__dataclass_fields__
        # What is None was not written; a job without storage has no folder.
        record = Record(**{"folder": None, **{name: value for name, value in found.items() if name in known}})
        _check(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        return Unreadable(path, str(error))
    return replace(record, command=tuple(record.command))


def find_all() -> tuple[list[Record], list[Unreadable]]:
    """All of them, the newest start first, and those that cannot be read."""
    try:
        names = sorted(os.listdir(os.path.join(state_folder(), "jobs")))
    except OSError:
        return [], []
    found = [read(os.path.join(folder_of(name), FILE)) for name in names]
    records = [each for each in found if isinstance(each, Record)]
    return sorted(records, key=lambda each: -each.started), [each for each in found if isinstance(each, Unreadable)]


def forget(record: Record) -> None:
    """Remove the record, and output that is kept with it; nothing on storage."""
    shutil.rmtree(folder_of(record.id), ignore_errors=True)


def ask_to_stop(record: Record) -> None:
    """Its launcher looks for this file. Raises OSError."""
    with open(os.path.join(folder_of(record.id), STOP_FILE), "w"):
        pass


def is_asked_to_stop(id_: str) -> bool:
    """Whether somebody wants that job to stop."""
    return os.path.exists(os.path.join(folder_of(id_), STOP_FILE))


def take_back_stop(id_: str) -> None:
    """Of an earlier run."""
    _unlink(os.path.join(folder_of(id_), STOP_FILE))


def _check(record: Record) -> None:
    texts = (record.name, record.namespace, record.cwd, record.born, record.output, record.folder or "")
    numbers = (record.started, record.ended or 0.0, record.storage_gone or 0.0)
    if not (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in numbers)
        and isinstance(record.pid, int)
        and isinstance(record.job, dict)
        and isinstance(record.command, list | tuple)
        and record.outcome in (None, "Complete", "Failed", STOPPED, KILLED)
        and (record.run is None or isinstance(record.run, int))
        and record.name
    ):
        raise ValueError("its fields are not those of a record")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
