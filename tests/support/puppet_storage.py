"""Where the simulator's checkpoints lie: each pod's own disk, and the job's storage. Files have names and no bytes.

What is done with them is decided by the agents' real code: `Saving` stages on a `Disk`, and all reach the `Storage`
through a `Child` of their own. Disks and storage take time, refuse, and lose replies; both outlive agents.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from trainjob.agent.storing.storage import StorageError
from trainjob.checkpoint import errors
from trainjob.checkpoint.choice.choose import Candidate, choose
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
from trainjob.checkpoint.staging.area import Held, StageResult
from trainjob.checkpoint.staging.plan import Source
from trainjob.checkpoint.staging.stamp import Stamp

CALL_S = (0.0, 0.1)
"""How long storage takes for one request."""
FILE_BYTES = 10
_STAMP = Stamp(FILE_BYTES, 0, 0, 0)


class Inline(Executor):
    """No thread: what is asked for is done at once."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class Disk:
    """One pod's staging area, in place of `checkpoint.staging.area.Staging`: one file a rank."""

    def __init__(self) -> None:
        self.full = False
        self._staged: dict[CheckpointId, list[NoteFile]] = {}
        self._released: dict[CheckpointId, Held] = {}

    def files_dir(self, id_: CheckpointId) -> str:
        return f"staging/{id_}"

    def stage(
        self,
        id_: CheckpointId,
        sources: Sequence[Source],
        states: Mapping[int, bytes],
        cancel: Callable[[], bool] = lambda: False,
    ) -> StageResult:
        self._fit()
        if id_ in self._released:
            raise StagingError(errors.CONFLICT, f"checkpoint {id_} is staged and released already")
        self._staged[id_] = [NoteFile(f"rank-{source.rank}", FILE_BYTES, source.rank) for source in sources]
        return StageResult({one.rank: [(one.path, one.size)] for one in self._staged[id_]}, [])

    def release(self, note: ReleaseNote) -> None:
        self._fit()
        here = [one for one in self._staged.pop(note.id, []) if one in note.files]
        ranks = tuple(sorted({one.rank for one in here}))
        self._released[note.id] = Held(note, {one.path: _STAMP for one in here}, ranks)

    def abandon(self, id_: CheckpointId) -> None:
        self.drop(id_)

    def released(self) -> list[Held]:
        return [self._released[id_] for id_ in sorted(self._released, reverse=True)]

    def held(self, id_: CheckpointId) -> Held | None:
        return self._released.get(id_)

    def drop(self, id_: CheckpointId) -> None:
        self._staged.pop(id_, None)
        self._released.pop(id_, None)

    def drop_unreleased(self) -> None:
        self._staged.clear()

    def sweep(self) -> list[str]:
        self._staged.clear()
        return []

    def _fit(self) -> None:
        if self.full:
            raise StagingError(errors.FULL, "the pod's volume is full")


@dataclass
class Storage:
    """One job's: shares, manifests, the end record."""

    rng: random.Random
    shares: set[tuple[str, int]] = field(default_factory=set)
    """(checkpoint, rank)"""
    manifests: dict[str, ReleaseNote] = field(default_factory=dict)
    """Committed checkpoints, also those that retention has removed."""
    retired: set[str] = field(default_factory=set)
    ended: dict[str, Any] | None = None
    ended_at: float | None = None
    claimed: bool = False
    newest_at_settle: CheckpointId | None = None
    refusal: tuple[str, str] | None = None
    """(kind, message): what whoever asks is told for now."""
    lost_replies: float = 0.0
    slow: float = 1.0
    held: set[str] = field(default_factory=set)
    """Requests that are not answered until `let_go`."""
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    bytes_s: float = 0.0
    """How long a rank's files take, beside the requests."""

    @property
    def kept(self) -> list[ReleaseNote]:
        """Oldest first."""
        notes = [note for id_, note in self.manifests.items() if id_ not in self.retired]
        return sorted(notes, key=lambda note: note.id)

    def settle(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.claimed = True
        self.newest_at_settle = self.kept[-1].id if self.kept else None
        candidates = [Candidate(ReleaseNote.from_json(c["note"]), frozenset(c["held"])) for c in asked["candidates"]]
        stored = {
            one.note.id: frozenset(f.path for f in one.note.files if (str(one.note.id), f.rank) in self.shares)
            for one in candidates
        }
        choice = choose(candidates, stored, self.kept[-1] if self.kept else None)
        chosen = choice and {
            "id": str(choice.note.id),
            "source": choice.source,
            "uri": None,
            "note": choice.note.to_json(),
            "stored": list(choice.stored),
        }
        return {"run": 1, **self._end(), "checkpoint": chosen}

    def share(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["checkpoint"] in self.retired:
            raise StorageError(errors.RETIRED, "retention has removed it")
        self.shares.add((asked["checkpoint"], asked["rank"]))
        return {"bytes": FILE_BYTES}

    def commit(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        note = ReleaseNote.from_json(asked["note"])
        id_ = str(note.id)
        if id_ in self.retired:
            return {"committed": False, "missing": []}
        missing = [rank for rank in asked.get("ranks") or note.ranks if (id_, rank) not in self.shares]
        if missing:
            return {"committed": False, "missing": missing}
        self.manifests[id_] = note
        return {"committed": True, "checkpoint": id_}

    def retain(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        older = self.kept[: -asked["keep"]] if asked["keep"] else []
        self.retired.update(str(note.id) for note in older if str(note.id) not in asked["protect"])
        return {"count": len(self.kept), "latest": None, "best": None}

    def end(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self.ended is None:
            self.ended, self.ended_at = dict(asked["summary"]), asyncio.get_running_loop().time()
        return {}

    def history(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def look(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"run": 1 if self.claimed else None, **self._end()}

    def _end(self) -> dict[str, Any]:
        return {"completed": self.ended is not None, "shown": (self.ended or {}).get("shown")}


class Child:
    """One agent's way to the storage, in place of `agent.storing.storage.StorageChild`."""

    storage = "/checkpoints"
    probed = True
    refused_at_first = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.moved = 0

    async def call(
        self, op: str, asked: Mapping[str, Any], on_progress: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        storage = self._storage
        await asyncio.sleep(storage.rng.uniform(*CALL_S) * storage.slow + (storage.bytes_s if op == "share" else 0.0))
        if op in storage.held:
            await storage.let_go.wait()
        if storage.refusal is not None:
            raise StorageError(*storage.refusal)
        done: dict[str, Any] = getattr(storage, "look" if op == "ended" else op)(asked)
        if storage.rng.random() < storage.lost_replies:
            raise StorageError(errors.UNREADABLE, "the reply was lost")
        if op == "share":
            self.moved += FILE_BYTES
            if on_progress is not None:
                on_progress(self.moved)
        return done
