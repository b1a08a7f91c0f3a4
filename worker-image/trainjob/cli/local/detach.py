"""`tj run --detach`: the same command in the background, in a session of its own, so that no terminal ends it."""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import time

from trainjob.cli.errors import CommandError
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.records import LAUNCHER_LOG, Record
from trainjob.screen import streams
from trainjob_api import defaults
from trainjob_api.contract import CLI_ERROR, CLI_OK
from trainjob_api.v1alpha1 import TrainJob

START_S = 60.0
"""How long a launcher may take to begin the job."""
_POLL_S = 0.1


def detach(job: TrainJob, words: list[str]) -> int:
    """Start `tj <words>` in the background and return once the job runs, or could not be started."""
    name = job.metadata.name
    id_ = records.identity(job.metadata.namespace, name, defaults.job_storage(job), 0)
    folder = records.folder_of(id_)
    log = os.path.join(folder, LAUNCHER_LOG.format(pid=os.getpid()))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(
            f"the launcher's words cannot be kept in {log}: {error.strerror}",
            next_step="free some space, or set XDG_STATE_HOME to a folder that can be written",
        ) from None
    with os.fdopen(descriptor, "wb", buffering=0) as said:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "trainjob.cli", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the ranks' lines, which the registry keeps, and bounds
            stderr=said,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while not _began(id_, launcher.pid):
        code = launcher.poll()
        if code is not None:
            with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
                streams.put(sys.stderr, file.read())
                os.unlink(log)
            return code
        if time.monotonic() > deadline:
            raise CommandError(
                f"{name} did not begin within {START_S:.0f} s (launcher pid {launcher.pid})",
                next_step=f"look at {log}",
                code=CLI_ERROR,
            )
        time.sleep(_POLL_S)
    for older in glob.glob(os.path.join(glob.escape(folder), LAUNCHER_LOG.format(pid="*"))):
        if older != log:  # of one name one launcher runs: the others are over
            with contextlib.suppress(FileNotFoundError):  # `tj rm`, in this moment
                os.unlink(older)
    next_step = f"`tj attach {name}` shows it, `tj logs {name} -f` its ranks' lines, `tj stop {name}` stops it"
    streams.write(sys.stdout, f"{name} runs in the background (pid {launcher.pid})\nnext: {next_step}")
    return CLI_OK


def _began(id_: str, pid: int) -> bool:
    found = records.read(os.path.join(records.folder_of(id_), records.FILE))
    return isinstance(found, Record) and found.pid == pid
