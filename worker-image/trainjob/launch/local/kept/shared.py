"""One parent for all workers of a job: what their ranks import is imported once, and a worker that comes later (in the
place of one that was lost, or since the job grows) has it at once.

Made by `backend` for one job; `kubelet` takes. Where there is none, each agent makes its own as ever, as in pods.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from trainjob.agent.warm.script import folder_of
from trainjob.launch.local import scratch
from trainjob.launch.local.kept import line, making, note
from trainjob.launch.local.kept.child import KeptChild
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.kept.likeness import Wish
from trainjob.launch.local.process import Launch
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.warm_messages import Keep, Stay

IMPORTS_S = 60.0
"""For its imports: then it ends."""
_FOR_EVER_S = 1e9
_WORD = "each worker imports for itself from now on, without the process that imports for all: {}"


class Shared:
    """Of one job."""

    def __init__(self, job: TrainJob, folder: str, tmp: str, owner: int, say: Callable[[str], None]) -> None:
        """`folder`: the job's private one; `tmp`: TMPDIR of its ranks; `owner`: read end of a pipe whose other end is
        closed when the launcher dies; `say`: why there is none any more, from other threads.
        """
        self._say = say
        self._runtime, self._processes = job.spec.runtime, defaults.processes_per_worker(job.spec)
        self._folder, self._tmp, self._owner = folder, tmp, owner
        self._log = os.path.join(folder, "shared.log")
        self._mutex = threading.Lock()
        self._made: _Made | None = None
        self._never = False
        """There is none (any more)."""
        self._takings = line.Takings()

    @staticmethod
    def is_for(job: TrainJob) -> bool:
        """Whether there is more than one worker to have it."""
        most = job.spec.workers if job.spec.elastic is None else job.spec.elastic.max_workers
        return sys.platform.startswith("linux") and most + job.spec.runtime.spare_workers > 1

    def take(self, launch: Launch, output: int) -> KeptChild | None:
        """As `Kept` says. Blocks while it imports."""
        taking = self._takings.of(launch)
        made = None
        try:
            made = self._one_for(launch)
            if made is None:
                return None
            return taking.taken(made.door, line.patience(time.monotonic() - made.began), launch, output)
        except Exception as error:  # the job must not wait for a start that nobody makes
            if made is None:
                self._say(_WORD.format(error))
            elif not taking.given_up:
                self._give_up(made, error)
            return None
        finally:
            os.close(output)

    def give_up(self, launch: Launch) -> None:
        """As `Kept` says."""
        self._takings.of(launch).give_up()

    def close(self) -> None:
        """What was started of it goes on."""
        with self._mutex:
            self._never = True
            if self._made is not None:
                making.kill(self._made.process, self._made.door)
                self._made = None

    def _one_for(self, launch: Launch) -> _Made | None:
        """Begun for the first that asks; None: it would be of no use to this one. Raises OSError."""
        wish = Wish.of(launch, self._runtime)
        environ = wish.environ_of_job(self._processes)
        with self._mutex:
            if self._never:
                return None
            if self._made is None:
                self._never = True  # unless it is there at the end of this
                if wish.why_none() is not None:
                    return None
                self._made = self._begun(wish, environ)
                self._never = False
            same = self._made.place == (tuple(wish.words), environ, launch.working_dir)
            return self._made if same else None

    def _begun(self, wish: Wish, environ: dict[str, str]) -> _Made:
        plan, id_ = wish.reading.plan(), secrets.token_hex(4)
        keep = Keep(
            id=id_,
            socket=os.path.join(self._folder, f"{id_}.sock"),
            until=making.now() + IMPORTS_S,
            modules=plan.modules,
            folder=folder_of(wish.words, wish.working_dir),
            optional=plan.optional,
            tmp=self._tmp,
            owner=self._owner,
            after_owner=(sys.executable, "-P", "-m", scratch.__name__, self._folder),
        )
        process, door = making.start(keep, environ, wish.working_dir, self._log, [self._owner], wish.flags)
        try:
            line.tell(door, Stay(making.now() + _FOR_EVER_S))
        except BaseException:
            making.kill(process, door)
            raise
        return _Made(process, door, (tuple(wish.words), environ, wish.working_dir))

    def _give_up(self, made: _Made, error: Exception) -> None:
        """It is gone, or out of order: nobody asks it again."""
        with self._mutex:
            if self._made is not made:
                return
            self._never, self._made = True, None
            with contextlib.suppress(OSError):
                making.kill(made.process, made.door)
        gone = isinstance(error, (ConnectionError, FileNotFoundError))
        self._say(_WORD.format(note.last_word(self._log) if gone else error))


class _Made:
    """One that was started."""

    def __init__(
        self, process: subprocess.Popen[bytes], door: Door, place: tuple[tuple[str, ...], dict[str, str], str]
    ):
        self.process, self.door, self.place = process, door, place
        self.began = time.monotonic()
