"""Several ranks' files become one tree: which copy of a path counts, and what is said about the others.

Used by staging for the ranks of one agent, and by rank 0's agent for all ranks of a release. Pure.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from trainjob.checkpoint.records.manifest import NoteFile

Listing = Sequence[Tuple[str, int]]
"""(path, size) of each file that a rank gave."""


class Merged(NamedTuple):
    """`files`: each path once, of the lowest rank that gave it. `duplicates`: same path and size from a higher rank,
    bytes not compared yet.
    """

    files: Tuple[NoteFile, ...]
    duplicates: Tuple[NoteFile, ...]
    warnings: Tuple[str, ...]


def merge(listings: Mapping[int, Listing]) -> Merged:
    """The lowest rank's copy of a path counts; a copy that cannot be the same is named in one warning a pair of
    ranks.
    """
    owners: Dict[str, NoteFile] = {}
    folders: Dict[str, NoteFile] = {}
    duplicates: List[NoteFile] = []
    clashes: Dict[Tuple[int, int], List[str]] = {}
    for rank in sorted(listings):
        for path, size in listings[rank]:
            unknown: List[str] = []
            other = owners.get(path) or folders.get(path)
            if other is None:
                # No file is the parent of a folder that is known, nor of a known one's: of few folders this is asked.
                folder = path.rpartition("/")[0]
                while folder and folder not in folders:
                    other = other or owners.get(folder)
                    unknown.append(folder)
                    folder = folder.rpartition("/")[0]
            if other is None:
                mine = owners[path] = NoteFile(path, size, rank)
                for folder in unknown:
                    folders[folder] = mine
            elif other.path == path and other.size == size:
                duplicates.append(NoteFile(path, size, rank))
            else:
                clashes.setdefault((other.rank, rank), []).append(path)
    warnings = tuple(difference(low, high, paths) for (low, high), paths in sorted(clashes.items()))
    return Merged(tuple(owners.values()), tuple(duplicates), warnings)


def difference(low: int, high: int, paths: Sequence[str]) -> str:
    """The warning that two ranks gave different files under one name."""
    named = ", ".join(repr(p) for p in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return (
        f"ranks {low} and {high} gave different files under one name ({named}): rank {low}'s counts. "
        f"Save on rank {low} alone, or put the rank into the file name."
    )
