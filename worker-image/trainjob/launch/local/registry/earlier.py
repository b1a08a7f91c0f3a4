"""The earlier runs of a name: `<record's folder>/runs/<start>.json`, each a record as it stood when the next one began.

`job.json` is always the newest run's. The recorder keeps the one before as it begins, under the name's lock; the
command line reads them. A run that has reached storage has a number, the first part of its checkpoints' ids (3-1-2);
one that ended before it did is named by its start, as its files of output are.
"""

from __future__ import annotations

import contextlib
import os

from trainjob.launch.local import lock
from trainjob.launch.local.registry import output, records
from trainjob.launch.local.registry.records import Record

FOLDER = "runs"
KEPT = 20
"""Earlier runs of a name that are remembered; what they stored is not the registry's."""


def keep(id_: str) -> None:
    """Before the record of a new run takes the place of the last one's. The caller has the lock. Raises OSError;
    JobRunning where the last run's launcher is there and has a lock that the caller cannot see.
    """
    last = records.read(os.path.join(records.folder_of(id_), records.FILE))
    if not isinstance(last, Record):
        return
    if last.outcome is None and last.folder is not None and last.pid != os.getpid() and last.has_lock:
        raise lock.JobRunning(last.folder, last.pid)
    folder = os.path.join(records.folder_of(id_), FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    records.write_to(_path(last), records.as_it_ended(last))
    for record in of(last)[KEPT - 1 :]:  # beside `last` itself
        forget(record)


def of(newest: Record) -> list[Record]:
    """Those that are remembered, the latest first, without the newest itself. A damaged one is left out."""
    folder = os.path.join(records.folder_of(newest.id), FOLDER)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [records.read(os.path.join(folder, name)) for name in names if name.endswith(".json")]
    # One that was kept by a launcher that was cut off then is still the newest.
    kept = [each for each in found if isinstance(each, Record) and each.started != newest.started]
    return sorted(kept, key=lambda each: -each.started)


def forget(record: Record) -> None:
    """Of an earlier run alone: its record."""
    with contextlib.suppress(OSError):
        os.unlink(_path(record))


def name_of(record: Record) -> str:
    """What `--run` takes for it."""
    return output.stamp(record.started) if record.number is None else str(record.number)


def _path(record: Record) -> str:
    return os.path.join(records.folder_of(record.id), FOLDER, f"{round(record.started * 1000)}.json")
