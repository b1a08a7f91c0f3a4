"""For tests of checkpoints: small trees, notes, whole commits, and processes that are cut off at a chosen file
operation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainjob.checkpoint.publishing.shares import Share, commit, share
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest, NoteFile, ReleaseNote
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.checkpoint.stores.store import Store

CUT = 77
"""Exit code of a process that was cut off."""


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Files below a folder."""
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    """The user's files of a checkpoint folder, and the ranks' states."""
    out = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and (not name.startswith(layout.RESERVED) or name.endswith(".state")):
            out[name] = path.read_bytes()
    return out


def note_of(id_: str, files: Mapping[str, tuple[int, int]], **fields: Any) -> ReleaseNote:
    """A release note of files {path: (size, rank)}."""
    base: dict[str, Any] = {
        "parent": None, "step": 10, "total_steps": None, "epoch": 1, "metrics": {"loss": 0.5}, "time": 1.5e9, "world_size": 2, "position": 1,
    }  # fmt: skip
    return ReleaseNote(
        id=CheckpointId.parse(id_),
        files=tuple(NoteFile(p, size, rank) for p, (size, rank) in files.items()),
        **{**base, **fields},
    )


class Job:
    """A job's folder, and two ranks' staged files for as many checkpoints as a test asks for."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        """On a path below `folder` unless a store is given."""
        self.folder = folder / "a job ünï"
        self.staged = folder / "staged"
        self.store: Any = store or PathStore(str(self.folder))

    def contents(self, id_: str) -> dict[str, bytes]:
        """The bytes of a checkpoint: every one has its own."""
        return {"model.pt": id_.encode() * 50, "deep/er/optim ü.pt": b"rank one " + id_.encode() * 20, "empty": b""}

    def note(self, id_: str, **fields: Any) -> ReleaseNote:
        """Rank 1 owns the optimizer, rank 0 the rest."""
        return note_of(
            id_, {p: (len(data), 1 if "optim" in p else 0) for p, data in self.contents(id_).items()}, **fields
        )

    def stage(self, id_: str) -> Path:
        """The staged tree of a checkpoint."""
        folder = self.staged / id_
        return folder if folder.exists() else write_tree(folder, self.contents(id_))

    def share(self, id_: str, rank: int, store: Any = None) -> int:
        """One rank's share."""
        lists = self.note(id_).share_of(rank)
        return share(
            store or self.store,
            Share(CheckpointId.parse(id_), rank, str(self.stage(id_)), lists["files"], lists["duplicates"]),
        )

    def save(self, id_: str, store: Any = None, **fields: Any) -> Manifest:
        """Both shares and the commit."""
        for rank in (0, 1):
            self.share(id_, rank, store)
        done = commit(store or self.store, self.note(id_, **fields), "nonce-" + id_)
        assert done.manifest is not None
        return done.manifest

    def good(self, run: int = 1) -> list[str]:
        """Identities of checkpoints that verify completely, and whose bytes are the ones that were saved."""
        out = []
        for manifest in stored.good(self.store, run, []):
            with tempfile.TemporaryDirectory() as brought:
                fetched(self.store, layout.folder(manifest.id), brought, manifest.id)
                assert read_tree(Path(brought)) == self.contents(str(manifest.id))
            out.append(str(manifest.id))
        return out[::-1]

    def path(self, id_: str) -> Path:
        """Folder of a checkpoint."""
        return self.folder / layout.folder(CheckpointId.parse(id_))

    def folders(self) -> list[str]:
        """Every checkpoint folder there is."""
        return [str(id_) for id_ in stored.ids(self.store)]


def fetched(store: Store, prefix: str, into: str, expected: CheckpointId | None = None) -> Manifest:
    """A good checkpoint, all of its files brought to a folder and compared."""
    manifest = stored.load(store, prefix, expected)
    assert manifest is not None
    stored.compare(store, prefix, manifest.entries, into)
    return manifest


_CALLS = ("link", "fsync", "replace", "unlink", "mkdir", "rmdir", "rename", "write")


def cut_off(work: Callable[[], object], at: int, *, after: bool) -> bool:
    """Run `work` in a forked process that dies (as by SIGKILL: no clean-up runs) at its `at`-th file operation, before
    it or right after it.

    True if it died there, False if it ended before. Raises when it failed by itself.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _arm(at, after)
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, CUT), f"the process ended with {status}"
    return status == CUT


def _arm(at: int, after: bool) -> None:
    count = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            here = count == at
            if here and not after:
                os._exit(CUT)
            try:
                return real(*args, **kwargs)
            finally:
                if here:
                    os._exit(CUT)

        return call

    for name in _CALLS:
        setattr(os, name, wrap(getattr(os, name)))


class Interposed:
    """A store that calls back before its n-th operation, from 1: somebody else acts between two operations of ours."""

    def __init__(self, store: Store, at: int, act: Callable[[], object]) -> None:
        self._store, self._at, self._act = store, at, act
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if not callable(real):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                self._act()
            return real(*args, **kwargs)

        return call
