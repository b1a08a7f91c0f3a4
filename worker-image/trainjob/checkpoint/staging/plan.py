"""What a report stages: each directory that ranks gave, once, with its files; which of them may be moved; names that
storage cannot keep; and where ranks gave different bytes under one name. Called by `area`, which stages them.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.merge import difference
from trainjob.checkpoint.staging import tree
from trainjob.checkpoint.staging.tree import TreeFile
from trainjob.checkpoint.stores import transfer


class Source(NamedTuple):
    """The directory that a rank gave with its report."""

    rank: int
    directory: str
    may_move: bool
    """The rank needs the directory no more: files may be moved out of it."""


class Plan(NamedTuple):
    """A directory that is staged once, for the lowest of the ranks that gave it."""

    rank: int
    directory: str
    given_away: bool
    """Nobody needs its files any more, once they are staged."""
    movable: bool
    """And they lie on the staging area's own file system."""
    files: List[TreeFile]


NameProblem = Callable[[CheckpointId, str], Optional[str]]
"""What of a name storage cannot keep; None: nothing."""


def plans_of(sources: Sequence[Source], root: str, ours: Sequence[str]) -> List[Plan]:
    """For the staging area at `root`; `ours`: what links there is copied. Raises StagingError."""
    grouped: Dict[str, List[Source]] = {}
    for source in sorted(sources):
        grouped.setdefault(os.path.realpath(source.directory), []).append(source)
    for real in grouped:
        if _inside(root, real):
            raise StagingError(
                errors.INVALID,
                f"checkpoint directory {real} contains the staging area {root}. Save into a folder of its "
                "own, for example tempfile.mkdtemp().",
            )
    plans = []
    for real, group in grouped.items():
        alone = not any(other != real and (_inside(other, real) or _inside(real, other)) for other in grouped)
        given_away = alone and all(s.may_move for s in group) and not _inside(real, root) and os.path.isdir(real)
        movable = given_away and _on_one_file_system(real, root)
        plans.append(Plan(group[0].rank, real, given_away, movable, tree.scan(group[0].directory, ours)))
    return plans


def check_names(id_: CheckpointId, plans: Sequence[Plan], problem_of: NameProblem) -> None:
    """Raises StagingError for a name that storage cannot keep."""
    for plan in plans:
        for file in plan.files:
            problem = problem_of(id_, file.path)
            if problem is not None:
                raise StagingError(errors.INVALID, f"{os.path.join(plan.directory, file.path)!r} {problem}")


def compare(
    duplicates: Sequence[Any],
    owners: Mapping[str, int],
    found: Mapping[Tuple[int, str], Tuple[Plan, TreeFile]],
    go_on: Callable[[], None],
) -> List[str]:
    """Copies of one path that differ, in words; reads both. Raises StagingError."""
    different: Dict[Tuple[int, int], List[str]] = {}
    for copy in duplicates:
        go_on()
        low = owners[copy.path]
        one, other = found[low, copy.path][1].source, found[copy.rank, copy.path][1].source
        try:
            same = one == other or transfer.same_bytes(one, other)
        except OSError as error:
            raise StagingError(*errors.explain(error, "read", other, writing=False)) from error
        if not same:
            different.setdefault((low, copy.rank), []).append(copy.path)
    return [difference(low, high, paths) for (low, high), paths in sorted(different.items())]


def _inside(path: str, folder: str) -> bool:
    return os.path.realpath(path) == folder or os.path.realpath(path).startswith(folder.rstrip(os.sep) + os.sep)


def _on_one_file_system(path: str, other: str) -> bool:
    try:
        return os.stat(path).st_dev == os.stat(other).st_dev
    except OSError:
        return False  # gone by now: who reads it says so
