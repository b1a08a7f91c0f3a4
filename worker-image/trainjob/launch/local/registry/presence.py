"""Whether the folder in which a running job stores is still the one in which its run began. Owned by the recorder.

It is told by the claim of the run, which is there before its first attempt and is never removed while the job runs:
inode numbers change by themselves on some file systems. Looked at in a thread of its own, since a mount that does not
answer holds whoever asks it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores import volumes

LOOK_S = 2.0
_CLAIMS_GONE = (FileNotFoundError, NotADirectoryError)


class Presence:
    """From construction to `stop()`; `tell` gets a sentence from the thread when the folder goes, and when it comes
    back.
    """

    def __init__(self, folder: str, run: Callable[[], int | None], tell: Callable[[str], None]) -> None:
        self._folder, self._run, self._tell = folder, run, tell
        self.gone_since: float | None = None
        """When that was noticed, in seconds since the epoch."""
        self._seen: int | None = None
        """The run whose claim was there."""
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="storage folder", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def look(self) -> None:
        """Once."""
        run = self._run()
        if run is None:
            return
        try:
            os.stat(os.path.join(self._folder, layout.run_key(run)))
        except _CLAIMS_GONE:
            if self._seen == run and self.gone_since is None:
                self.gone_since = time.time()
                self._tell(gone(self._folder))
        except OSError:
            return  # storage that refuses or does not answer is told of by the agents
        else:
            self._seen = run
            volumes.remember(self._folder)
            if self.gone_since is not None:
                self.gone_since = None
                self._tell(f"the storage folder {self._folder} is there again, as it was")

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()


def gone(folder: str) -> str:
    """At the moment at which it is noticed."""
    if volumes.is_unmounted(folder):
        return (
            f"warning: the storage folder {folder} is gone: its volume was unmounted. Training continues; checkpoints "
            "are stored again once it is mounted"
        )
    return (
        f"warning: the storage folder {folder} is gone: it was removed. What was saved in it went with it. Training "
        "continues; the next checkpoint makes the folder anew"
    )


def at_the_end(folder: str, since: float) -> str:
    """What is there, and what to do."""
    if volumes.is_unmounted(folder):
        return f"the storage folder {folder} went away at {clock(since)}: mount its volume before you run the job again"
    return (
        f"the storage folder {folder} went away at {clock(since)}: only what was saved since is in it. If its volume "
        "was unmounted, move that elsewhere and mount the volume before you run the job again"
    )


def clock(moment: float) -> str:
    """The time of day; of another day, with its date."""
    then = time.localtime(moment)
    return time.strftime("%H:%M:%S" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", then)
