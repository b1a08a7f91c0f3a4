"""A job's folder on a mounted file system: the Store on paths.

A file appears under its name by `link()` of a finished, fsynced temporary file, which fails if the name is taken;
folders are fsynced too. It is read-only from then on. Renames that overwrite are for `put` alone. Temporary files carry
a random name and are never looked at by anyone else: what a killed process leaves is removed with its checkpoint. Safe
for several threads.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Dict, List, Optional, Sequence, Set, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records.names import UNFINISHED
from trainjob.checkpoint.stores import folders, transfer, volumes
from trainjob.checkpoint.stores.folders import GONE
from trainjob.checkpoint.stores.store import Stored, Wanted, the_same
from trainjob.checkpoint.stores.transfer import Progress

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class PathStore:
    """The Store below the folder `root`."""

    algorithm = transfer.ALGORITHM
    at_once = 4

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._unsynced: Set[str] = set()
        self._lock = threading.Lock()

    def uri(self, key: str = "") -> str:
        """An absolute path."""
        return os.path.join(self.root, key) if key else self.root

    def local(self, folder: str) -> Optional[str]:
        """The folder itself."""
        return self.uri(folder)

    def probe(self) -> None:
        """Write, link, read and remove a small file in the root."""
        name = f"{UNFINISHED}probe-{os.urandom(6).hex()}"
        if not self.create(name, b"probe"):
            raise StoreError(
                errors.READ_ONLY,
                f"storage {self.root} said that a file with a random name is there already: it cannot be relied upon",
            )
        found = self.read(name)
        self.delete(name)
        if found != b"probe":
            raise StoreError(
                errors.UNREADABLE,
                f"storage {self.root} did not give back what was just written to it. Check the mount (findmnt -T "
                f"{self.root}).",
            )

    def read(self, key: str) -> Optional[bytes]:
        """None when there is no such file."""
        try:
            with open(self.uri(key), "rb") as file:
                return file.read()
        except OSError as error:
            self._absent(error, "read", key)
            return None

    def size(self, key: str) -> Optional[int]:
        """None when there is no such file."""
        try:
            return os.stat(self.uri(key)).st_size
        except OSError as error:
            self._absent(error, "look at", key)
            return None

    def names(self, folder: str) -> List[Tuple[str, bool]]:
        """Sorted by name."""
        try:
            with os.scandir(self.uri(folder)) as entries:
                return sorted(
                    (e.name, e.is_dir(follow_symlinks=False)) for e in entries if not e.name.startswith(UNFINISHED)
                )
        except OSError as error:
            self._absent(error, "list", folder)
            return []

    def sizes(self, folder: str) -> Dict[str, int]:
        """Links count as what they lead to; one that leads nowhere is no file."""
        out: Dict[str, int] = {}
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            try:
                with os.scandir(self.uri(here)) as entries:
                    for entry in entries:
                        key = f"{here}/{entry.name}" if here else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(key)
                        else:
                            out[key] = entry.stat().st_size
            except OSError as error:
                self._absent(error, "list", here)
        return out

    def create(self, key: str, data: bytes) -> bool:
        """By link() of a temporary file."""
        with _Temporary(self, key) as temporary:
            self._fill(temporary, data, self.uri(key), for_good=True)
            made = self._publish(temporary, self.uri(key))
        folders.sync_folder(os.path.dirname(self.uri(key)))
        return made

    def put(self, key: str, data: bytes) -> None:
        """By an overwriting rename."""
        target = self.uri(key)
        with _Temporary(self, key) as temporary:
            self._fill(temporary, data, self.uri(key))
            try:
                os.replace(temporary, target)
            except OSError as error:
                raise StoreError(*errors.explain(error, "write", target, writing=True)) from error
        folders.sync_folder(os.path.dirname(target))

    def upload(self, key: str, source: str, progress: Progress) -> Stored:
        """Checksummed while it is copied."""
        target = self.uri(key)
        with transfer.open_staged(source) as original:
            stored = self._same(key, original.fileno(), progress)
            if stored is None:
                with _Temporary(self, key) as temporary:
                    stored = self._copy(original.fileno(), temporary, target, progress)
                    made = self._publish(temporary, target)
                if not made:
                    # Somebody else stored it meanwhile, and perhaps committed and tidied: an older attempt at the same
                    # share.
                    stored = self._same(key, original.fileno(), transfer.nothing)
        if stored is None:
            raise StoreError(
                errors.LOST,
                f"cannot store {target}: its unfinished copy was removed by something else, likely another process "
                "of this job. Try again.",
            )
        with self._lock:
            # The folders above too: whoever made them may have been killed before they were durable.
            while target != self.root and target != os.path.dirname(target):
                target = os.path.dirname(target)
                self._unsynced.add(target)
        return stored

    def flush(self) -> None:
        """fsync the folders that got new names."""
        with self._lock:
            named, self._unsynced = self._unsynced, set()
        for folder in sorted(named):
            folders.sync_folder(folder)

    def checksum(
        self, key: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """None when there is no such file."""
        try:
            with open(self.uri(key), "rb", buffering=0) as file:
                return Stored(*transfer.checksum(file.fileno(), progress, algorithm), algorithm)
        except OSError as error:
            self._absent(error, "read", key)
            return None

    def download(
        self, key: str, path: str, progress: Progress, algorithm: str = transfer.ALGORITHM, size: Optional[int] = None
    ) -> Optional[Stored]:
        """None when there is no such file."""
        try:
            with open(self.uri(key), "rb", buffering=0) as file:
                with transfer.open_target(path) as copy:
                    return self._bring(file.fileno(), copy.fileno(), path, progress, algorithm)
        except OSError as error:
            self._absent(error, "read", key)
            return None

    def upload_small(self, files: Sequence[Tuple[str, str, int]], progress: Progress) -> Dict[str, Stored]:
        """None: files are copied one by one."""
        return {}

    def download_small(self, files: Sequence[Wanted], progress: Progress) -> Set[str]:
        """None: files are copied, or read, one by one."""
        return set()

    def delete(self, key: str) -> None:
        """A file that is gone already is fine."""
        try:
            os.unlink(self.uri(key))
        except OSError as error:
            if error.errno not in GONE:
                raise StoreError(*errors.explain(error, "remove", self.uri(key), writing=True)) from error

    def unfinished(self, folder: str) -> List[str]:
        """Temporary files."""
        return [key for key in self.sizes(folder) if os.path.basename(key).startswith(UNFINISHED)]

    def tidy(self, folder: str) -> None:
        """Remove temporary files."""
        for key in self.unfinished(folder):
            self.delete(key)

    def prune(self, folder: str) -> None:
        """Folders in which somebody else writes meanwhile stay."""
        for path, _, _ in os.walk(self.uri(folder), topdown=False):
            try:
                os.rmdir(path)
            except OSError as error:
                if error.errno not in (*GONE, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                    raise StoreError(*errors.explain(error, "remove", path, writing=True)) from error

    def _absent(self, error: OSError, doing: str, key: str) -> None:
        """Passes over a file that is not there; any other failure is raised, worded."""
        if error.errno not in GONE:
            raise StoreError(*errors.explain(error, doing, self.uri(key), writing=False)) from error

    def _same(self, key: str, original: int, progress: Progress) -> Optional[Stored]:
        """What is stored under `key` if it is the file `original`; None if nothing is. Raises StoreError if it is
        another one.
        """
        there = self.checksum(key, transfer.nothing)
        if there is None:
            return None
        return the_same(self.uri(key), there, original, progress)

    @staticmethod
    def _bring(file: int, copy: int, path: str, progress: Progress, algorithm: str) -> Stored:
        try:
            return Stored(*transfer.copy(file, copy, progress, algorithm), algorithm)
        except OSError as error:
            raise StoreError(*errors.explain(error, "write", path, writing=True)) from error

    @staticmethod
    def _copy(original: int, temporary: str, target: str, progress: Progress) -> Stored:
        try:
            with open(temporary, "xb", buffering=0) as copy:
                size, checksum = transfer.copy(original, copy.fileno(), progress)
                transfer.protect(copy.fileno())
                os.fsync(copy.fileno())
        except OSError as error:
            raise StoreError(*errors.explain(error, "store", target, writing=True)) from error
        return Stored(size, checksum, transfer.ALGORITHM)

    @staticmethod
    def _fill(temporary: str, data: bytes, target: str, for_good: bool = False) -> None:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                if for_good:
                    transfer.protect(file.fileno())
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(*errors.explain(error, "write", target, writing=True)) from error

    def _publish(self, temporary: str, target: str) -> bool:
        try:
            os.link(temporary, target)
        except FileExistsError:
            # A network file system may have done it and lost the reply: then the temporary file has two names.
            return _names_of(temporary) == 2
        except FileNotFoundError:
            return False  # tidied up: whoever did that has published
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StoreError(
                    errors.READ_ONLY,
                    f"cannot store {target}: {error.strerror}; likely the file system cannot make hard links "
                    "(link()), by which a checkpoint is "
                    f"published whole or not at all. Name a folder on another file system (findmnt -T {self.root}).",
                ) from error
            raise StoreError(*errors.explain(error, "store", target, writing=True)) from error
        return True


def _names_of(path: str) -> int:
    try:
        return os.stat(path).st_nlink
    except FileNotFoundError:
        return 0


class _Temporary:
    """The name of a temporary file beside its target, in a folder that exists; whatever is there at the end is
    removed.
    """

    def __init__(self, store: PathStore, key: str) -> None:
        self._store = store
        self._folder = os.path.dirname(store.uri(key))
        self._path = os.path.join(self._folder, f"{UNFINISHED}{os.getpid()}-{os.urandom(6).hex()}")

    def __enter__(self) -> str:
        volumes.check(self._store.root)
        folders.make_folder(self._folder)
        volumes.remember(self._store.root)
        return self._path

    def __exit__(self, *_error: object) -> None:
        try:
            os.unlink(self._path)
        except OSError:
            pass
