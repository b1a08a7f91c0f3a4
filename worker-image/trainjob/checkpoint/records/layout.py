"""Where everything lies in a job's folder on storage, and in a staged checkpoint.

    checkpoints/<id>/<path>                      the user's files, under their own names
    checkpoints/<id>/.trainjob/rank-<r>.state    what the library saves for rank r (data position, random numbers)
    checkpoints/<id>/.trainjob/rank-<r>.json     rank r's share: its files, sizes and checksums
    checkpoints/<id>/.trainjob/manifest.json     the commit; without it the checkpoint does not exist
    checkpoints/<id>/.trainjob/damaged.json      verification failed: readers pass it over
    checkpoints/<id>/.trainjob/retired.json      its removal has begun: readers pass it over
    runs/<k>.json  runs/<k>.end.json             who owns run k and what it resumes from; that it completed
    runs/<k>.attempt-<n>.json                    attempt n of the run is about to choose what it resumes from
    runs/<k>.policy.json                         by what its checkpoints are scored, for whoever asks for the best later
    runs/<k>.validation-<id>.json                what a checkpoint of the run was validated with, or that it is to be
    runs/damaged-<crc32>.json                    a checkpoint elsewhere, named by resumeFrom, that turned out damaged
    history/<run>-<attempt>.jsonl                reports and log rows of one attempt; of a long one the first of them
    history/<run>-<attempt>.<n>.jsonl            what follows, n from 1; only the last segment still changes
    trackers/<tracker>/<turn>.json               who feeds an experiment tracker since that turn
    trackers/<tracker>/<turn>.state.json         up to where it has, and whether it has left
    output/<start>-<attempt>.log[.gz]            what the ranks of a job on this machine wrote, kept by its launcher

The user's files cannot collide with ours: the folder `.trainjob` at the top of a checkpoint is reserved. Used by
everything that touches storage; pure.
"""

from __future__ import annotations

import re
import zlib
from typing import Optional, Tuple

from trainjob.checkpoint.records.identity import CheckpointId

RESERVED = ".trainjob"
CHECKPOINTS = "checkpoints"
RUNS = "runs"
HISTORY = "history"
OUTPUT = "output"
TRACKERS = "trackers"

_NUMBER = re.compile(r"([1-9][0-9]{0,17})\.json", re.ASCII)
_ATTEMPT = re.compile(r"([1-9][0-9]{0,17})\.attempt-([0-9]{1,18})\.json", re.ASCII)
_HISTORY = re.compile(r"([1-9][0-9]{0,17})-([0-9]{1,18})(?:\.([1-9][0-9]{0,8}))?\.jsonl", re.ASCII)


def state_path(rank: int) -> str:
    """Path, inside a checkpoint, of the state that the library keeps for a rank."""
    return f"{RESERVED}/rank-{rank}.state"


def is_own(path: str) -> bool:
    """Whether a file of a checkpoint is the library's own, and no user's."""
    return path.startswith(f"{RESERVED}/")


def folder(id_: CheckpointId) -> str:
    """Key prefix of a checkpoint, without a trailing slash."""
    return f"{CHECKPOINTS}/{id_}"


def own_folder(id_: CheckpointId) -> str:
    """Key prefix of our own files in a checkpoint."""
    return f"{CHECKPOINTS}/{id_}/{RESERVED}"


def file_key(id_: CheckpointId, path: str) -> str:
    """Key of a file of the checkpoint."""
    return f"{CHECKPOINTS}/{id_}/{path}"


def share_name(rank: int) -> str:
    """Name of a rank's share record in `own_folder`."""
    return f"rank-{rank}.json"


def share_key(id_: CheckpointId, rank: int) -> str:
    """Key of a rank's share record."""
    return f"{own_folder(id_)}/{share_name(rank)}"


MANIFEST = "manifest.json"
DAMAGED = "damaged.json"
RETIRED = "retired.json"


def manifest_key(id_: CheckpointId) -> str:
    """Key of the manifest."""
    return f"{own_folder(id_)}/{MANIFEST}"


def damaged_key(id_: CheckpointId) -> str:
    """Key of the mark that verification failed."""
    return f"{own_folder(id_)}/{DAMAGED}"


def retired_key(id_: CheckpointId) -> str:
    """Key of the mark that removal has begun."""
    return f"{own_folder(id_)}/{RETIRED}"


def run_key(run: int) -> str:
    """Key of a run's claim."""
    return f"{RUNS}/{run}.json"


def end_key(run: int) -> str:
    """Key of a run's end record."""
    return f"{RUNS}/{run}.end.json"


def returned_key(run: int) -> str:
    """Key of what rank 0's function returned, pickled."""
    return f"{RUNS}/{run}.returned.pkl"


def attempt_key(run: int, attempt: int) -> str:
    """Key of the mark that an attempt has begun."""
    return f"{RUNS}/{run}.attempt-{attempt}.json"


def parse_attempt(name: str) -> Optional[Tuple[int, int]]:
    """(run, attempt) of a mark in `runs/`; None for other files."""
    found = _ATTEMPT.fullmatch(name)
    return (int(found.group(1)), int(found.group(2))) if found else None


def policy_key(run: int) -> str:
    """Key of the note by what a run's checkpoints are scored; there once the first of a job with a score attribute
    is committed.
    """
    return f"{RUNS}/{run}.policy.json"


def validation_key(id_: CheckpointId) -> str:
    """Key of the record of a checkpoint's validation."""
    return f"{RUNS}/{id_.run}.validation-{id_}.json"


def origin_mark_key(uri: str) -> str:
    """Key of the mark that a checkpoint in another folder turned out damaged."""
    return f"{RUNS}/damaged-{zlib.crc32(uri.encode('utf-8', 'surrogatepass')):08x}.json"


def history_key(run: int, attempt: int, segment: int = 0) -> str:
    """Key of one attempt's rows; segments count from 0."""
    return f"{HISTORY}/{run}-{attempt}{f'.{segment}' if segment else ''}.jsonl"


def turns_folder(tracker: str) -> str:
    """Key prefix of a tracker's turns, without a trailing slash."""
    return f"{TRACKERS}/{tracker}"


def turn_key(tracker: str, turn: int) -> str:
    """Key of the claim of a turn."""
    return f"{TRACKERS}/{tracker}/{turn}.json"


def turn_state_key(tracker: str, turn: int) -> str:
    """Key of what came of a turn."""
    return f"{TRACKERS}/{tracker}/{turn}.state.json"


def parse_turn(name: str) -> Optional[int]:
    """The turn whose claim has this name; None for other files."""
    found = _NUMBER.fullmatch(name)
    return int(found.group(1)) if found else None


def parse_run(name: str) -> Optional[int]:
    """The run whose claim has this name in `runs/`; None for other files."""
    found = _NUMBER.fullmatch(name)
    return int(found.group(1)) if found else None


def parse_history(name: str) -> Optional[Tuple[int, int, int]]:
    """(run, attempt, segment) of a file name in `history/`; None for other files."""
    found = _HISTORY.fullmatch(name)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)) if found else None


def checked_path(path: object) -> str:
    """`path` if it names a file inside a checkpoint: relative, no empty part, no `.` or `..`. Raises ValueError.

    Paths arrive from peers and from manifests on storage, and files are written under them.
    """
    if (
        not isinstance(path, str)
        or not path
        or "\0" in path
        or any(part in ("", ".", "..") for part in path.split("/"))
    ):
        raise ValueError(f"{path!r} is no path of a file inside a checkpoint")
    return path
