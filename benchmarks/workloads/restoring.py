"""Two ranks on two workers; rank 1's worker dies again and again. Rank 0 restores from its own staging, rank 1 from its
peer; a JSON line for each.

restoring.py NOTES ROUNDS BYTES
"""

import json
import os
import signal
import sys
import tempfile
import time

import trainjob


def save(rank: int, size: int) -> None:
    """Rank 0 gives a file of that size; STAGED is enough."""
    folder = tempfile.mkdtemp()
    if rank == 0:
        block = os.urandom(1 << 20)
        with open(os.path.join(folder, "state.bin"), "wb") as file:
            for _ in range(size >> 20):
                file.write(block)
    given = trainjob.Checkpoint.from_directory(folder) if rank == 0 else None
    trainjob.report({"loss": 0.1}, checkpoint=given, delete_local_checkpoint_after_upload=True)


def main(notes: str, rounds: str, size: str) -> None:
    context = trainjob.get_context()
    rank = context.get_world_rank()
    begun = time.perf_counter()
    found = trainjob.get_checkpoint()
    if found is None:
        save(rank, int(size))
    else:
        with found.as_directory() as folder:
            took = time.perf_counter() - begun
            if os.path.getsize(os.path.join(folder, "state.bin")) != int(size):
                raise SystemExit("it is not whole")
        with open(notes, "a") as file:
            print(json.dumps({"rank": rank, "took": took}), file=file, flush=True)
    trainjob.barrier()
    if context.attempt <= int(rounds):
        if rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
