"""Becomes one rank's program, with the rank that Open MPI gave it in the variables that every job has. Run as a script:
`one_rank.py program...`, by mpirun and its daemons.

Imports nothing of ours, as it is read anew for each rank. The names are the contract's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Dict, Mapping, Optional

PR_SET_PDEATHSIG = 1
_OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_OURS = ("TRAINJOB_MPI_TMPDIR", "TRAINJOB_MPI_SOCKET", "TRAINJOB_MPI_KEY")


def told(environ: Mapping[str, str]) -> Dict[str, str]:
    """What the program gets. Raises ValueError where Open MPI has spread its ranks as no job has them."""
    place = {ours: environ[theirs] for ours, theirs in _OPEN_MPI.items()}
    why = _misplaced({name: int(value) for name, value in place.items()}, environ)
    if why is not None:
        raise ValueError(why)
    told = {name: value for name, value in environ.items() if name not in _OURS}
    told.update(place)
    if environ.get(_OURS[0]):
        told["TMPDIR"] = environ[_OURS[0]]
    else:
        told.pop("TMPDIR", None)
    return told


def _misplaced(place: Mapping[str, int], environ: Mapping[str, str]) -> Optional[str]:
    workers, index = int(environ["PET_NNODES"]), int(environ["NODE_RANK"])
    each = place["LOCAL_WORLD_SIZE"]
    if place["WORLD_SIZE"] != workers * each:
        return (
            f"mpirun starts {place['WORLD_SIZE']} ranks, {each} of them on worker {index} of {workers}. A job has the "
            "same number on each: leave out mpirun's -n (or -np)"
        )
    if place["RANK"] != index * each + place["LOCAL_RANK"]:
        return (
            f"mpirun puts rank {place['RANK']} onto worker {index}. A job's ranks are numbered through, worker by "
            "worker: leave out mpirun's --map-by and --rank-by, or say --map-by slot"
        )
    return None


def main() -> None:
    """End with whoever started this, look whether that is still there, exec."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    try:
        os.execvpe(sys.argv[1], sys.argv[1:], told(os.environ))
    except (ValueError, KeyError, OSError) as error:
        reason = f"{error} is not set" if isinstance(error, KeyError) else str(error)
        sys.exit(f"trainjob: {sys.argv[1]} cannot be started as a rank: {reason}")


if __name__ == "__main__":
    main()
