"""Where the files of a checkpoint handle come from, for `Checkpoint.files()`, `open()` and `as_directory()`.

Three kinds: a plain folder, a checkpoint that was committed to a path or a bucket, and one that a worker's agent brings
(`Brought`). Of a committed one, each file is compared with the manifest before it is handed out. Made by `checkpoint`
alone; changes nothing that is stored, and hands out no folder in which user code could.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Optional, Protocol, Sequence, Set

from trainjob.session.errors import CheckpointError
from trainjob.session.own_folder import OwnFolder

if TYPE_CHECKING:
    from trainjob.checkpoint.records.manifest import FileEntry

OWN_FOLDER = ".trainjob"


class Contents(Protocol):
    """The files of one handle. Every method may raise CheckpointError."""

    def files(self) -> List[str]:
        """Relative paths of the user's files, sorted."""
        ...

    def has(self, path: str) -> bool:
        """Whether a path is one of `files()`."""
        ...

    def bring(self, paths: Sequence[str]) -> None:
        """Have several of them here, and compared, at the price of one request."""
        ...

    def file(self, path: str) -> str:
        """The local path of one of them, brought here and compared if need be."""
        ...

    def read_folder(self) -> str:
        """A local folder with all of them, in which nothing may be changed; on a path the library's own lie beside."""
        ...

    def folder(self) -> str:
        """One that user code may do with as it likes."""
        ...


def of_the_user(path: str) -> bool:
    """Whether a committed file came from a rank, and not from this library."""
    return not path.startswith(f"{OWN_FOLDER}/")


class Once:
    """Does a piece of work once per name, however many threads ask for it; what failed is tried anew by the next who
    asks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: Dict[str, Future[None]] = {}

    def __call__(self, names: Iterable[str], work: Callable[[List[str]], None]) -> None:
        """`work` on those that nobody has begun; returns when all of them are done. Raises what it raised, to
        whoever waits for it.
        """
        with self._lock:
            others = [self._begun[name] for name in names if name in self._begun]
            mine = [name for name in names if name not in self._begun]
            done: Future[None] = Future()
            self._begun.update(dict.fromkeys(mine, done))
        if mine:
            try:
                work(mine)
            except BaseException as error:
                with self._lock:
                    for name in mine:
                        del self._begun[name]
                done.set_exception(error)
                raise
            done.set_result(None)
        for other in others:
            other.result()


class PlainFolder:
    """Files as they lie in a folder that nobody committed: before report(), or staged."""

    def __init__(self, path: str) -> None:
        self._path = path

    def files(self) -> List[str]:
        """What report() would take."""
        found: List[str] = []
        for folder, folders, files in os.walk(self._path):
            if folder == self._path and OWN_FOLDER in folders:
                folders.remove(OWN_FOLDER)
            found += (os.path.relpath(os.path.join(folder, name), self._path) for name in files)
        return sorted(found)

    def has(self, path: str) -> bool:
        """Without looking at the others."""
        return (
            not os.path.isabs(path)
            and path.split(os.sep)[0] not in (os.pardir, OWN_FOLDER)
            and os.path.isfile(os.path.join(self._path, path))
        )

    def bring(self, paths: Sequence[str]) -> None:
        """They are here."""

    def file(self, path: str) -> str:
        """As it lies there."""
        return os.path.join(self._path, path)

    def read_folder(self) -> str:
        """The folder itself."""
        return self._path

    def folder(self) -> str:
        """It is the user's."""
        return self._path


class Committed:
    """A checkpoint with a manifest, on a path or in a bucket. What is downloaded goes with this object."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._once = Once()
        self._read: Optional[Dict[str, FileEntry]] = None
        self._copies: Optional[str] = None
        self._own: Optional[OwnFolder] = None
        self._lock = threading.Lock()

    def files(self) -> List[str]:
        """As the manifest lists them."""
        return sorted(filter(of_the_user, self._entries()))

    def has(self, path: str) -> bool:
        """By the manifest."""
        return of_the_user(path) and path in self._entries()

    def bring(self, paths: Sequence[str]) -> None:
        """Those of a bucket side by side."""
        self._once(paths, self._bring)

    def file(self, path: str) -> str:
        """Compared on its first use; a file of a bucket is downloaded."""
        self._once([path], self._bring)
        self._mend([path])
        return os.path.join(self._place(), path)

    def read_folder(self) -> str:
        """All of the user's, those brought that have not been."""
        self._once(self.files(), self._bring)
        self._mend(self.files())
        return self._place()

    def folder(self) -> str:
        """One of its own; a new one if somebody did something to that."""
        source = self.read_folder()
        self._own = _own_folder(self._own, self, source, self.files(), expendable=source != self._uri)
        return self._own.path

    def _mend(self, paths: Sequence[str]) -> None:
        """Download again what somebody wrote to through the folder that they were given."""
        if self._own is None or self._place() == self._uri:
            return
        written = [path for path in paths if self._own.wrote_through(path)]
        for path in written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._place(), path))
        if written:
            self._bring(written)

    def _bring(self, paths: List[str]) -> None:
        from trainjob.checkpoint.choice import catalogue
        from trainjob.checkpoint.errors import StoreError

        entries = self._entries()
        try:
            catalogue.fetch(self._uri, [entries[path] for path in paths], self._place())
        except StoreError as error:
            raise CheckpointError(f"The checkpoint {self._uri} cannot be brought here: {error}") from error

    def _entries(self) -> Dict[str, FileEntry]:
        from trainjob.checkpoint.choice import catalogue
        from trainjob.checkpoint.errors import StoreError

        with self._lock:
            if self._read is None:
                try:
                    self._read = {entry.path: entry for entry in catalogue.read_manifest(self._uri).entries}
                except StoreError as error:
                    raise CheckpointError(f"The checkpoint {self._uri} cannot be read: {error}") from error
            return self._read

    def _place(self) -> str:
        """Where the files lie: the checkpoint's own folder, or a temporary one, made at the first download."""
        if "://" not in self._uri:
            return self._uri
        with self._lock:
            if self._copies is None:
                self._copies = tempfile.mkdtemp(prefix="trainjob-checkpoint-")
                weakref.finalize(self, shutil.rmtree, self._copies, True)
            return self._copies


class Fetch(Protocol):
    """Asks the agent."""

    def __call__(self, paths: Optional[List[str]], apart: bool = False) -> str:
        """The folder with the files that are named (None: all); `apart`: writing to them loses nothing."""
        ...


class Brought:
    """A checkpoint that get_checkpoint() gave: this worker's agent brings its files, each once for all ranks."""

    def __init__(self, listing: str, fetch: Fetch, is_old: Callable[[], bool] = lambda: False) -> None:
        """`listing`: JSON file with the paths of all files. `is_old`: whether a newer checkpoint was released, so that
        a link leads to what the agent removes any moment; asked again, it gives a file that stays.
        """
        self._listing = listing
        self._fetch = fetch
        self._is_old = is_old
        self._once = Once()
        self._names: Optional[Set[str]] = None
        self._folder = ""
        self._own: Optional[OwnFolder] = None

    def files(self) -> List[str]:
        """As the agent knows them."""
        return sorted(self._known())

    def has(self, path: str) -> bool:
        """By the same list."""
        return path in self._known()

    def bring(self, paths: Sequence[str]) -> None:
        """The agent gets them side by side."""
        self._once(paths, self._bring)

    def file(self, path: str) -> str:
        """Asks the agent on the first use, and again for what only lies in its staging and leaves it, or was perhaps
        written to since."""
        self._once([path], self._bring)
        if not self._stays(path) or (self._own is not None and path in self._own.links):
            self._bring([path])
        return os.path.join(self._folder, path)

    def _stays(self, path: str) -> bool:
        local = os.path.join(self._folder, path)
        return os.path.exists(local) and not (os.path.islink(local) and self._is_old())

    def read_folder(self) -> str:
        """Everything, as the agent has it."""
        self._bring(None)
        return self._folder

    def folder(self) -> str:
        """This rank's own; a new one if somebody did something to that."""
        if self._own is None or not self._own.is_as_it_was() or (self._own.links and self._is_old()):
            self._folder = self._fetch(None, True)
        try:
            self._own = _own_folder(self._own, self, self._folder, self.files(), expendable=True)
        except CheckpointError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._folder = self._fetch(None, True)  # a newer one was released just then
            self._own = _own_folder(self._own, self, self._folder, self.files(), expendable=True)
        return self._own.path

    def _bring(self, paths: Optional[List[str]]) -> None:
        self._folder = self._fetch(paths)

    def _known(self) -> Set[str]:
        if self._names is None:
            try:
                with open(self._listing, encoding="utf-8", errors="surrogateescape") as file:
                    self._names = set(filter(of_the_user, json.load(file)))
            except OSError as error:
                raise CheckpointError(
                    f"What is in the checkpoint cannot be read any more: {error}. It goes with the attempt that "
                    "resumed from it."
                ) from error
        return self._names


def _own_folder(
    before: Optional[OwnFolder], owner: object, source: str, files: List[str], expendable: bool
) -> OwnFolder:
    if before is not None and before.is_as_it_was():
        return before
    try:
        return OwnFolder(owner, source, files, expendable)
    except OSError as error:
        raise CheckpointError(
            f"A folder with the checkpoint's files cannot be made: {error}. Read single files with open()."
        ) from error
