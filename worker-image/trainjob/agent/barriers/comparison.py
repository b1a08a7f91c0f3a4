"""Whether copies of one path that several agents gave are the same, before anything is acknowledged
(`spec.checkpoint.strict`). Pure.

Made by `collectives` when all agents have staged. Only paths that more than one agent gave with one size are asked for:
a job that saves each file on one rank pays nothing.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Set, Tuple

from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.records.merge import difference


class Comparison:
    """One report's. `at`: the agent that staged a rank's files."""

    def __init__(self, note: ReleaseNote, at: Mapping[int, int]) -> None:
        self._owners = {f.path: f.rank for f in note.files}
        self._copies = [(f.path, f.rank) for f in note.duplicates]
        self._sums: Dict[Tuple[str, int], str] = {}
        self._questions: Dict[int, Dict[int, List[str]]] = {}
        """By agent: the paths, by rank, whose checksums are wanted."""
        for path, rank in sorted({*self._copies, *((path, self._owners[path]) for path, _ in self._copies)}):
            self._questions.setdefault(at[rank], {}).setdefault(rank, []).append(path)
        self.waiting: Set[int] = set(self._questions)

    def question(self, index: int) -> Dict[int, Tuple[str, ...]]:
        """By rank, the paths whose checksums are wanted of this agent."""
        return {rank: tuple(paths) for rank, paths in self._questions[index].items()}

    def answered(self, index: int, sums: Mapping[int, Mapping[str, str]]) -> bool:
        """An agent's checksums; whether they were the last ones."""
        if index not in self.waiting:
            return False
        self._sums.update({(path, rank): found for rank, paths in sums.items() for path, found in paths.items()})
        self.waiting.discard(index)
        return not self.waiting

    def differences(self) -> List[str]:
        """One sentence for each pair of ranks whose copies differ."""
        different: Dict[Tuple[int, int], List[str]] = {}
        for path, rank in self._copies:
            owner = self._owners[path]
            if self._sums[path, owner] != self._sums[path, rank]:
                different.setdefault((owner, rank), []).append(path)
        return [difference(low, high, paths) for (low, high), paths in sorted(different.items())]
