"""TrainJob's local backend with a job whose number of workers somebody writes into a file, as `kubectl scale` does on a
cluster.

Arguments: that file, the storage, the script, and the script's own arguments. Ends when it is stopped.
"""

import sys
import threading
import time
from pathlib import Path

from support.edited import Edited
from trainjob.launch.job import ScriptJob, from_script
from trainjob.launch.local import drive
from trainjob.launch.local.backend import LocalEvent, run_job

LOOK_S = 0.01
NAME = "job"


def main(wish: Path, storage: str, command: list[str]) -> None:
    """The file says the size from the beginning on."""
    drive.MemoryCluster = Edited  # type: ignore[misc]
    size = int(wish.read_text())
    threading.Thread(target=follow, args=(wish, size), daemon=True).start()
    run_job(
        from_script(ScriptJob(command=(sys.executable, *command), workers=size, name=NAME, storage=storage)),
        listener=show,
    )


def follow(wish: Path, size: int) -> None:
    """Edit the job whenever the file says another number."""
    while True:
        time.sleep(LOOK_S)
        text = wish.read_text()
        if text.isdigit() and int(text) != size:
            size = int(text)
            Edited.newest.edit(NAME, workers=size)


def show(event: LocalEvent) -> None:
    """For the log."""
    if event.text:
        print(event.text, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
