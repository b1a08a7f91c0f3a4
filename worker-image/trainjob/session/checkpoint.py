"""`Checkpoint`: a handle on a folder, before report() takes it over and after it came back.

User code makes one with from_directory() or from_dict(); `calls` hands it to the agent and makes those that
get_checkpoint() returns. Works without a worker too: `Checkpoint(path)` opens any committed folder on a laptop. It
copies nothing large and never changes a folder that was committed, nor lets user code do so; files of one at s3:// are
brought here when they are first asked for.
"""

from __future__ import annotations

import difflib
import json
import os
import pickle
import shutil
import stat
import tempfile
import weakref
from contextlib import contextmanager
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, Optional, Type, TypeVar, Union

from trainjob.session import dict_file, elsewhere, filesystems, milestones, recycled
from trainjob.session.contents import OWN_FOLDER, Committed, Contents, PlainFolder
from trainjob.session.errors import CheckpointError
from trainjob_api import nonfinite
from trainjob_api.contract import DICT_FILE

METADATA_FILE = ".metadata.json"
"""Travels as a file among the user's (Ray's name for it too), so that any copy of the folder keeps it."""
_MANIFEST = f"{OWN_FOLDER}/manifest.json"
_S3 = "s3://"
C = TypeVar("C", bound="Checkpoint")


class Checkpoint:
    """A folder with a training state.

    ```python
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
        trainjob.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    ```

    `path` is local (a plain or file:// path), or an s3:// URI for one that was opened outside of a job. For one that
    came from get_checkpoint() or a Result, `id` names it ("run-attempt-index") and `step`, `epoch`, `metrics`,
    `world_size` say where it was taken; else these are None.
    """

    def __init__(self, path: str, filesystem: Optional[Any] = None) -> None:
        if filesystem is not None:
            try:
                path = filesystems.located(os.fspath(path), filesystem)
            except ValueError as error:
                raise CheckpointError(f"Checkpoint(filesystem=...): {error}.") from None
        self._path: Optional[str] = _local(path)
        self.id: Optional[str] = None
        self.uri: Optional[str] = None
        self.step: Optional[int] = None
        self.epoch: Optional[int] = None
        self.metrics: Optional[Dict[str, Any]] = None
        self.world_size: Optional[int] = None
        self._contents: Optional[Contents] = None
        self._followed = False
        """Whether it was looked whether its files are elsewhere."""
        self._noted = False
        """Its manifest, which was seen, says so: `path` is to look, though that asks a bucket."""
        self._elsewhere = False
        self.owned = False
        """Made by from_dict: a temporary folder of ours, which report() may move away and which goes with the last
        handle.
        """

    def __eq__(self, other: object) -> bool:
        """Of the same place: handles do not compare files."""
        return self._place() == other._place() if isinstance(other, Checkpoint) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._place())

    def _place(self) -> Optional[str]:
        return self.uri or self._path

    def __repr__(self) -> str:
        name = f"id={self.id!r}, " if self.id else ""
        place = f"path={self._path!r}" if self._path is not None else f"uri={self.uri!r}"
        return f"Checkpoint({name}{place})"

    @property
    def path(self) -> str:
        """Where it lies. Of one that get_checkpoint() gave: this rank's own folder with its files, brought here; of one
        that was reported with NO_UPLOAD: where they were put. (Of one in a bucket that you opened by its URI that is
        known once a file of it was asked for.) Raises CheckpointError when that cannot be read.
        """
        if self._path is None:
            contents = self._contents_of()  # which may learn of the place
            return contents.folder() if self._path is None else self._path
        if not self._followed and (self._noted or os.path.exists(os.path.join(self._path, elsewhere.FILE))):
            self._contents_of()
        return self._path

    @property
    def filesystem(self) -> Any:
        """A pyarrow filesystem that reads `path` (of an s3:// URI: what follows s3://). Raises ImportError without
        pyarrow.
        """
        return filesystems.of(self.path)

    @classmethod
    def from_directory(cls, path: str) -> Checkpoint:
        """A handle on the files in `path`. They are taken over by report(), not before. Raises CheckpointError where
        `path` is a file.

        ```python
        folder = tempfile.mkdtemp()
        torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
        trainjob.report(metrics, checkpoint=Checkpoint.from_directory(folder), step=step)
        ```
        """
        made = cls(path)
        if made._path is not None and os.path.isfile(made._path):
            raise CheckpointError(
                f"Checkpoint.from_directory(path={path!r}): that is a file. Give the folder that holds it: "
                f"{os.path.dirname(made._path)!r}; report() saves all files of that folder."
            )
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Pickle `data` into a temporary folder now; later changes to it do not count. Read back with to_dict().

        Equal data gives equal files on every rank, so that all ranks may pass the same; but for sets, whose order is
        another in each process: sort them into a list. Tensors are stored from the CPU, whatever device they are on.
        `pickle.load` reads the file without this library.

        ```python
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        trainjob.report(metrics, checkpoint=Checkpoint.from_dict(state))
        ```
        """
        if not isinstance(data, Mapping):
            raise CheckpointError(f"Checkpoint.from_dict needs a dict, got {type(data).__name__}")
        checkpoint = cls.in_new_folder("trainjob-dict-")
        folder = checkpoint.path
        try:
            with recycled.new_file(os.path.join(folder, DICT_FILE)) as file:
                dict_file.dump(dict(data), file)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"Checkpoint.from_dict: the value at {dict_file.culprit(data)} cannot be pickled: {error}. Leave it "
                "out, or save it into a folder and use from_directory()."
            ) from error
        except OSError as error:
            raise CheckpointError(f"Checkpoint.from_dict cannot write to {folder}: {error}") from error
        return checkpoint

    @classmethod
    def in_new_folder(cls: Type[C], prefix: str) -> C:
        """A handle on a new temporary folder of ours, which report() may move away and which goes with the handle."""
        # Scripts that make room take TMPDIR away with what is in it; where it is a link, the folder behind it.
        os.makedirs(os.path.realpath(tempfile.gettempdir()), exist_ok=True)
        folder = tempfile.mkdtemp(prefix=prefix)
        checkpoint = cls(folder)
        checkpoint.owned = True
        weakref.finalize(checkpoint, shutil.rmtree, folder, True)
        return checkpoint

    @classmethod
    def from_restored(cls, found: Mapping[str, Any], contents: Optional[Contents] = None) -> Checkpoint:
        """The handle for a `restored` reply of the agent; `contents`: of one that is not here yet. `elsewhere` in it:
        what is stored is a note.
        """
        # One that is not here yet has no path; a relative one would ask for a working folder, which may be gone.
        checkpoint = cls(str(found.get("path") or os.sep))
        checkpoint._noted = bool(found.get("elsewhere"))
        if contents is not None:
            checkpoint._path, checkpoint._contents = None, contents
        for name in ("id", "uri", "step", "epoch", "metrics", "world_size"):
            setattr(checkpoint, name, found.get(name))
        checkpoint.metrics = None if checkpoint.metrics is None else nonfinite.numbers(checkpoint.metrics)
        return checkpoint

    def to_dict(self) -> Dict[str, Any]:
        """What from_dict() was given. Unpickles: only for checkpoints of your own.

        ```python
        saved = trainjob.get_checkpoint()
        if saved:
            state = saved.to_dict()
            model.load_state_dict(state["model"])
            first_epoch = state["epoch"] + 1
        ```
        """
        if not self._contents_of().has(DICT_FILE):
            raise CheckpointError(
                f"{self!r} was not made by Checkpoint.from_dict (no {DICT_FILE} in it): read its files with "
                "as_directory()."
            )
        with self.open(DICT_FILE) as file:
            data: Dict[str, Any] = pickle.load(file)
        milestones.restored()
        return data

    def files(self) -> List[str]:
        """Relative paths of the files that were saved, sorted. Of a committed checkpoint only its manifest is read.

        ```python
        print(Checkpoint.from_dict({"epoch": 1}).files())  # ["checkpoint.pkl"]
        ```
        """
        contents = self._contents_of()
        if self._elsewhere and not self._is_brought:
            self._there()
        return contents.files()

    def bring(self, paths: Iterable[str]) -> None:
        """Get several of its files in one go, side by side, for the open() calls that follow. Raises what open()
        raises.
        """
        contents, names = self._contents_of(), list(dict.fromkeys(map(os.path.normpath, paths)))
        for name in names:
            if not contents.has(name):
                raise CheckpointError(_no_such_file(repr(self), name, contents.files()))
        contents.bring(names)

    def open(self, path: Union[str, os.PathLike[str]]) -> BinaryIO:
        """One of its files, to be read: brought here alone if it is not here yet, and compared with the manifest if
        there is one.

        Raises CheckpointError when there is no such file, or when it is damaged.

        ```python
        checkpoint = trainjob.get_checkpoint()
        if checkpoint:
            with checkpoint.open("model.pt") as file:
                model.load_state_dict(torch.load(file, map_location="cpu"))
        ```
        """
        name = os.path.normpath(os.fspath(path))
        self.bring([name])
        local = self._contents_of().file(name)
        try:
            try:
                return open(local, "rb")
            except FileNotFoundError:  # a newer one was released just then, and it left the agent's staging area
                local = self._contents_of().file(name)
                return open(local, "rb")
        except OSError as error:
            raise CheckpointError(
                f"{local}, which is {name} of {self!r}, cannot be read: {error.strerror or error}"
            ) from error

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """A folder with the files. Of one that was saved it is this process's own: whatever is done in it, what was
        saved stays as it is. Large files in it are links to read-only ones: replace them, do not write into them.

        ```python
        checkpoint = trainjob.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                model.load_state_dict(torch.load(os.path.join(folder, "model.pt"), map_location="cpu"))
        ```
        """
        yield self._folder()
        milestones.restored()

    def to_directory(self, path: Optional[str] = None) -> str:
        """Copy the files to `path` (made if absent; absent argument: a new temporary folder, yours to delete);
        returns it.

        ```python
        checkpoint = trainjob.get_checkpoint()
        if checkpoint:
            print(os.listdir(checkpoint.to_directory("./copy")))
        ```
        """
        source = self._contents_of().read_folder() if self._is_brought else self._there()
        target = os.path.abspath(os.path.expanduser(path)) if path else tempfile.mkdtemp(prefix="trainjob-checkpoint-")
        try:
            try:
                _copy_all(source, target)
            except FileNotFoundError:
                if not self._is_brought:
                    raise
                _copy_all(self._contents_of().read_folder(), target)  # as in open()
        except OSError as error:
            raise CheckpointError(f"Copying {source} to {target} failed: {error}") from error
        return target

    def get_metadata(self) -> Dict[str, Any]:
        """The metadata that was set before report(); empty when none was."""
        contents = self._contents_of()
        if isinstance(contents, elsewhere.Unread) or not contents.has(METADATA_FILE):
            return {}
        try:
            with self.open(METADATA_FILE) as file:
                found = json.load(file)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"The metadata in {METADATA_FILE} of {self!r} cannot be read: {error}") from error
        return dict(found)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata (JSON values); before report().

        ```python
        checkpoint = Checkpoint.from_dict({"model": model.state_dict()})
        checkpoint.set_metadata({"classes": ["cat", "dog"]})
        trainjob.report(metrics, checkpoint=checkpoint)
        ```
        """
        if self.id is not None or self.path.startswith(_S3) or os.path.isdir(os.path.join(self._there(), OWN_FOLDER)):
            raise CheckpointError(
                f"{self!r} is a committed checkpoint and is not changed any more: set its metadata before report(), "
                "or copy it with to_directory()."
            )
        try:
            text = json.dumps(dict(metadata))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"Checkpoint metadata must be JSON values: {error}") from error
        with open(os.path.join(self._there(), METADATA_FILE), "w", encoding="utf-8") as file:
            file.write(text)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Merge into the metadata; before report()."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def _contents_of(self) -> Contents:
        if self._contents is None and self._elsewhere:  # a copy in another process
            self._contents = elsewhere.contents(self._path or "")
        if self._contents is None:
            if not self._is_brought and not os.path.exists(os.path.join(self._there(), _MANIFEST)):
                return PlainFolder(self._path or "")  # not kept: it may be committed meanwhile
            self._contents = Committed(self._path or "")
        if not self._followed:
            if self._contents.has(elsewhere.FILE):
                self._follow(self._contents)
            self._followed = True  # not before: what could not be read is looked for again
        return self._contents

    def _follow(self, stored: Contents) -> None:
        """To where user code has put the files of what is stored."""
        with open(stored.file(elsewhere.FILE), "rb") as file:
            place = elsewhere.read(file.read())
        self.uri = self.uri or self._path
        self._path, self._elsewhere = place, True
        self._contents = elsewhere.contents(place)

    @property
    def _is_brought(self) -> bool:
        """Whether its files do not lie at a path that was given to us."""
        return self._path is None or self._path.startswith(_S3)

    def _folder(self) -> str:
        if not self._is_brought:
            self._there()
        return self._contents_of().folder()

    def _there(self) -> str:
        path = self._path or ""
        if not os.path.isdir(path):
            if self._elsewhere:
                raise CheckpointError(
                    f"There is nothing at {path}, where your own code had put this checkpoint's files (NO_UPLOAD): "
                    "they were moved or deleted, or that place is not on this machine."
                )
            raise CheckpointError(
                f"There is no checkpoint folder at {path}. Save into it first (os.makedirs(path, exist_ok=True), "
                "then torch.save(...)). If it was there: report() may have moved it (get_checkpoint() returns the "
                "saved one), or retention (keep) deleted it."
            )
        return path

    def __getstate__(self) -> Dict[str, Any]:
        # A copy in another process must not think that temporary folders are its own.
        path = self.path  # which may learn of the place
        return {**self.__dict__, "_path": path, "owned": False, "_contents": None}


def _copy_all(source: str, target: str) -> None:
    """What of it is the user's. Raises OSError."""
    for folder, folders, files in os.walk(source):
        if folder == source and OWN_FOLDER in folders:
            folders.remove(OWN_FOLDER)
        into = os.path.normpath(os.path.join(target, os.path.relpath(folder, source)))
        os.makedirs(into, exist_ok=True)
        for name in files:
            copy = shutil.copy2(os.path.join(folder, name), os.path.join(into, name))
            os.chmod(copy, os.stat(copy).st_mode | stat.S_IWUSR)  # what is kept is read-only, a copy is not


def _no_such_file(what: str, name: str, known: List[str]) -> str:
    if not known:
        return f"{what} has no file {name!r}: it is empty."
    near = (
        difflib.get_close_matches(name, known, 3, 0.5)
        or [path for path in known if os.path.basename(path) == os.path.basename(name)][:3]
    )
    listed = ", ".join(repr(path) for path in near or known[:3])
    return (
        f"{what} has no file {name!r}. {'The nearest' if near else 'It begins with'}: {listed}; files() lists all "
        f"{len(known)}."
    )


def _local(path: str) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"A checkpoint's path is the path of a folder, got {path!r} ({type(path).__name__}).")
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text[len("file://") :]
    elif text.startswith(_S3):
        return text.rstrip("/")
    elif "://" in text:
        raise CheckpointError(
            f"Checkpoint path {text!r} is not on this machine: only paths and s3:// can be opened here; copy the "
            "folder first."
        )
    return os.path.abspath(os.path.expanduser(text))
