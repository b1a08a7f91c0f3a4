"""The agent's staging area: checkpoints that survive the death of ranks and of the agent itself.

    <root>/<id>/files/<path>      one flat tree of all files that this agent's ranks gave
    <root>/<id>/released.json     the release note, which of its paths lie here and how those files looked; written
                                  once, atomically
    <root>/.trash-*               what is being removed

A checkpoint counts from the moment that `released.json` stands there; anything else is a leftover that `sweep` removes.
Called by the agent alone, from worker threads; one Staging object a root. Files are moved, reflinked or copied, never
hard-linked: torch.save rewrites a file in place, and a link would carry that into the staged copy. Kept files are
read-only, and one that does not look as it did when it was kept (`stamp`) is not held any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob.checkpoint.records import layout, names
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
from trainjob.checkpoint.records.merge import merge
from trainjob.checkpoint.staging import cloning
from trainjob.checkpoint.staging.plan import Source, check_names, compare, plans_of
from trainjob.checkpoint.staging.recycling import Recycling
from trainjob.checkpoint.staging.stamp import Stamp, boot
from trainjob.checkpoint.staging.tree import TreeFile
from trainjob.checkpoint.stores import transfer

_RELEASED = "released.json"
_TRASH = ".trash-"
Cancel = Callable[[], bool]
"""Whether nobody wants any more what is being staged; asked between blocks of a file."""


class StageResult(NamedTuple):
    """`files`: for each rank the (path, size) that lie here in its name, states included."""

    files: Dict[int, List[Tuple[str, int]]]
    warnings: List[str]


class Held(NamedTuple):
    """A released checkpoint and what of it lies here, whole."""

    note: ReleaseNote
    stamps: Mapping[str, Stamp]
    """Of each path, as it was kept."""
    ranks: Tuple[int, ...]
    """Ranks whose files all lie here, as far as the note names any."""

    @property
    def paths(self) -> Tuple[str, ...]:
        """What lies here, sorted."""
        return tuple(sorted(self.stamps))


class Staging:
    """The staging area below `root` (made if need be), of a job with that storage (None: nowhere)."""

    def __init__(
        self,
        root: str,
        storage: Optional[str] = None,
        given_out: Optional[str] = None,
        recycling: Optional[Recycling] = None,
    ) -> None:
        """`given_out`: a folder from which restored checkpoints are handed out; they may be saved again. `recycling`:
        where what leaves the area goes first.
        """
        self._recycling = recycling
        self.root = os.path.abspath(root)
        local = None if storage is None or "://" in storage else storage
        self._ours = [os.path.realpath(folder) for folder in (self.root, given_out, local) if folder is not None]
        self._name_problem = names.rule_for(storage)
        self._staged: Dict[CheckpointId, Dict[NoteFile, Stamp]] = {}
        try:
            os.makedirs(self.root, exist_ok=True)
        except OSError as error:
            raise StagingError(*errors.explain(error, "make the staging folder", self.root, writing=True)) from error

    def files_dir(self, id_: CheckpointId) -> str:
        """Where the files of a staged checkpoint lie."""
        return os.path.join(self._folder(id_), "files")

    def stage(
        self,
        id_: CheckpointId,
        sources: Sequence[Source],
        states: Mapping[int, bytes],
        cancel: Cancel = lambda: False,
    ) -> StageResult:
        """Put all ranks' files and states into the staged tree. Raises StagingError, and then nothing of it is left;
        of kind STOPPED once `cancel` says so.

        A path that several ranks gave counts for the lowest of them; different bytes are named in one warning.
        """

        def go_on() -> None:
            if cancel():
                raise StagingError(errors.STOPPED, f"checkpoint {id_} is not staged any further: its attempt is over")

        if os.path.lexists(os.path.join(self._folder(id_), _RELEASED)):
            raise StagingError(
                errors.CONFLICT, f"checkpoint {id_} is staged and released already: an index is used once"
            )
        self.drop(id_)
        plans = plans_of(sources, self.root, self._ours)
        check_names(id_, plans, self._name_problem)
        merged = merge({p.rank: [(f.path, f.size) for f in p.files] for p in plans})
        found = {(p.rank, f.path): (p, f) for p in plans for f in p.files}
        warnings = list(merged.warnings) + compare(
            merged.duplicates, {f.path: f.rank for f in merged.files}, found, go_on
        )
        listing: Dict[int, List[Tuple[str, int]]] = {s.rank: [] for s in sources}
        chosen = [found[f.rank, f.path] for f in merged.files]
        stamps: Dict[NoteFile, Stamp] = {}
        try:
            # Copies first: a disk that is full is noticed before anything has left the rank's own directory.
            for plan, file in sorted(chosen, key=lambda c: c[0].movable and not c[1].linked):
                stamp = self._take(id_, file, plan.movable and not file.linked, go_on)
                stamps[NoteFile(file.path, file.size, plan.rank)] = stamp
                listing[plan.rank].append((file.path, file.size))
            for rank in sorted(states):
                path, size = layout.state_path(rank), len(states[rank])
                stamps[NoteFile(path, size, rank)] = self._write(os.path.join(self.files_dir(id_), path), states[rank])
                listing.setdefault(rank, []).append((path, size))
            go_on()  # the last moment at which nothing of the rank's has been removed
        except BaseException:
            self.drop(id_)
            raise
        for plan, file in chosen:
            if plan.given_away and not plan.movable and not file.linked:
                with contextlib.suppress(OSError):
                    os.unlink(file.source)
        for files in listing.values():
            files.sort()
        self._staged[id_] = stamps
        return StageResult(listing, warnings)

    def checksums(self, id_: CheckpointId, paths: Sequence[str]) -> Dict[str, str]:
        """Of files that were staged and are not released yet. Raises StagingError."""
        out = {}
        for path in paths:
            staged = os.path.join(self.files_dir(id_), layout.checked_path(path))
            try:
                with open(staged, "rb", buffering=0) as file:
                    out[path] = transfer.checksum(file.fileno())[1]
            except OSError as error:
                raise StagingError(*errors.explain(error, "read the staged file", staged, writing=False)) from error
        return out

    def release(self, note: ReleaseNote) -> None:
        """Make a checkpoint count: what was staged here for it (perhaps nothing) and what everybody else holds.
        Raises StagingError.
        """
        # Compared with its rank: a path may lie here too as the copy of a higher rank, which does not count.
        counted = set(note.files)
        held = {f.path: stamp for f, stamp in self._staged.pop(note.id, {}).items() if f in counted}
        doc = {"note": note.to_json(), "held": held, "boot": boot()}
        self._write(os.path.join(self._folder(note.id), _RELEASED), json.dumps(doc).encode())

    def abandon(self, id_: CheckpointId) -> None:
        """Remove what was staged for a report that is not released."""
        self.drop(id_)

    def released(self) -> List[Held]:
        """Released checkpoints, newest first, with the paths that lie here as they were kept. Torn notes, leftovers
        and what was kept before the kernel started anew are passed over.
        """
        found = (self._read(id_) for id_ in sorted(self._ids(), reverse=True))
        return [held for held in found if held is not None]

    def held(self, id_: CheckpointId) -> Optional[Held]:
        """One released checkpoint; None when it is not here."""
        return self._read(id_)

    def drop(self, id_: CheckpointId) -> None:
        """Remove a checkpoint, released or not. It is gone as a whole before its files go one by one."""
        self._staged.pop(id_, None)
        folder = self._folder(id_)
        trash = os.path.join(self.root, f"{_TRASH}{id_}-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            os.rename(folder, trash)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StagingError(*errors.explain(error, "remove", folder, writing=True)) from error
        if self._recycling is not None:
            self._recycling.keep(os.path.join(trash, "files"))
        shutil.rmtree(trash, ignore_errors=True)

    def drop_unreleased(self) -> None:
        """Remove whatever was staged and does not count, by whomever. Raises StagingError."""
        for id_ in self._ids():
            if self._read(id_) is None:
                self.drop(id_)

    def sweep(self) -> List[str]:
        """Remove everything that is not released: what an agent that was killed left behind. Called once, at the
        agent's start.
        """
        removed = []
        for name in sorted(os.listdir(self.root)):
            path = os.path.join(self.root, name)
            id_ = _parse(name)
            if name.startswith(_TRASH) or (id_ is not None and id_ not in self._staged and self._read(id_) is None):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(name)
        return removed

    def _folder(self, id_: CheckpointId) -> str:
        return os.path.join(self.root, str(id_))

    def _ids(self) -> List[CheckpointId]:
        return [id_ for id_ in map(_parse, os.listdir(self.root)) if id_ is not None]

    def _read(self, id_: CheckpointId) -> Optional[Held]:
        try:
            with open(os.path.join(self._folder(id_), _RELEASED), "rb") as file:
                doc: Any = json.loads(file.read())
            note = ReleaseNote.from_json(doc["note"])
            claimed = {layout.checked_path(path): Stamp.from_json(row) for path, row in doc["held"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        if note.id != id_ or doc.get("boot") != boot():
            return None
        files = self.files_dir(id_)
        stamps = {path: stamp for path, stamp in claimed.items() if Stamp.at(os.path.join(files, path)) == stamp}
        stamps = {f.path: stamps[f.path] for f in note.files if f.path in stamps and stamps[f.path].size == f.size}
        lacking: Set[int] = {f.rank for f in note.files if f.path not in stamps}
        return Held(note, stamps, tuple(sorted({f.rank for f in note.files} - lacking)))

    def _take(self, id_: CheckpointId, file: TreeFile, move: bool, go_on: Callable[[], None]) -> Stamp:
        go_on()
        target = os.path.join(self.files_dir(id_), file.path)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if move:
                if not os.access(file.source, os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file.source)
                try:
                    os.rename(file.source, target)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    move = False
            if not move:
                with open(file.source, "rb", buffering=0) as source, open(target, "xb", buffering=0) as copy:
                    cloning.clone(source.fileno(), copy.fileno(), go_on)
            with open(target, "rb", buffering=0) as kept:
                now = os.fstat(kept.fileno()) if move else os.stat(file.source)
                transfer.protect(kept.fileno())
                stamp = Stamp.of(os.fstat(kept.fileno()))
        except FileNotFoundError as error:
            raise _changed(file, "disappeared") from error
        except OSError as error:
            raise _failed(error, file, target) from error
        if (stamp.size, now.st_size, now.st_mtime_ns) != (file.size, file.size, file.mtime_ns):
            raise _changed(file, "changed")
        return stamp

    def _write(self, path: str, data: bytes) -> Stamp:
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                transfer.protect(file.fileno())
            os.replace(temporary, path)
            return Stamp.of(os.stat(path))  # after the rename, which is a change too
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise StagingError(*errors.explain(error, "write", path, writing=True, room=_ROOM)) from error


_ROOM = (
    "Free space there (df -h {mount}); on a cluster raise spec.checkpoint.staging.sizeLimit, which holds about two "
    "checkpoints of a worker, and with medium Memory the container's memory limit too."
)


def _failed(error: OSError, file: TreeFile, target: str) -> StagingError:
    """Reading the rank's file or writing the copy: the errno tells which of them to blame."""
    reading = error.errno in (errno.EACCES, errno.EIO) and error.filename == file.source
    if reading:
        return StagingError(*errors.explain(error, "read", file.source, writing=False))
    return StagingError(*errors.explain(error, f"stage {file.source} as", target, writing=True, room=_ROOM))


def _changed(file: TreeFile, what: str) -> StagingError:
    return StagingError(
        errors.CHANGED,
        f"{file.source} {what} while it was staged: something still writes there. Finish saving (join the saving "
        "thread, wait for async saves) before report().",
    )


def _parse(name: str) -> Optional[CheckpointId]:
    try:
        return CheckpointId.parse(name)
    except ValueError:
        return None
