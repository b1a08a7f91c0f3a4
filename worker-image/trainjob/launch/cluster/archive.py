"""Packs the code beside a script, so that it can travel to the pods: which files, how many, how large, in one archive.

Called by `tj submit SCRIPT`. Bounded on all sides: a folder of data beside the code is an error that names it, never an
upload.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainjob.launch.errors import LaunchError

FILES_LIMIT = 4000
RAW_LIMIT = 64 * 1024 * 1024
IGNORE_FILE = ".tjignore"
SKIPPED_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".venv",
        "venv",
        ".tox",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
        "node_modules",
    }
)
_GIT_S = 20.0
_SHOWN = 4


@dataclass(frozen=True)
class File:
    """A file that travels."""

    name: str
    """Relative to the folder, with slashes."""
    path: str
    size: int


def collect(folder: str, must: Sequence[str] = ()) -> list[File]:
    """The files of a folder: those that git tracks or would, in a repository; else all but caches, environments and
    hidden folders.

    Lines of .tjignore (names and patterns as `data/`, `*.ckpt`) take out more. `must` are in whatever is ignored.
    Raises LaunchError.
    """
    patterns = _patterns(folder)
    names = {name for name in (_tracked(folder) or _walked(folder)) if not _ignored(name, patterns)} | set(must)
    files = []
    for name in sorted(names):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):  # a link to nothing; a file that an editor has just taken away
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                files.append(File(name, path, found.st_size))
    total = sum(file.size for file in files)
    if len(files) > FILES_LIMIT or total > RAW_LIMIT:
        raise LaunchError(
            f"{folder} holds {len(files)} files of {_mib(total)}: that is more than code (at most {FILES_LIMIT} "
            f"files, {_mib(RAW_LIMIT)} travel); {largest(files)}"
        )
    return files


def pack(files: Sequence[File]) -> bytes:
    """A tar.gz of them; the same files give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            try:
                with open(file.path, "rb") as source:
                    data = source.read()
            except OSError as error:
                raise LaunchError(
                    f"{file.path} cannot be read ({error.strerror}): correct its permissions, or name it in "
                    f"{IGNORE_FILE}"
                ) from error
            entry.size, entry.mode = len(data), 0o755 if os.access(file.path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), compresslevel=9, mtime=0)


def largest(files: Sequence[File]) -> str:
    """The largest ones, for a message."""
    by_size = sorted(files, key=lambda file: -file.size)[:_SHOWN]
    return "largest: " + ", ".join(f"{file.name} ({_mib(file.size)})" for file in by_size)


def _mib(count: int) -> str:
    return f"{count / 1024:.0f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def _tracked(folder: str) -> list[str] | None:
    """What git lists below the folder; None where it is no repository, or git is not there, or lists nothing."""
    command = ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] or None


def _walked(folder: str) -> Iterator[str]:
    count = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.startswith(".")
            and not _is_environment(os.path.join(root, name))
        )
        for name in files:
            if name.endswith(".pyc"):
                continue
            count += 1
            if count > FILES_LIMIT:
                raise LaunchError(
                    f"{folder} holds more than {FILES_LIMIT} files: that is more than code; start from the folder of "
                    f"the script, or name folders in {IGNORE_FILE}"
                )
            yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _patterns(folder: str) -> list[str]:
    try:
        with open(os.path.join(folder, IGNORE_FILE), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return []
    return [line for line in lines if line and not line.startswith("#")]


def _ignored(name: str, patterns: Sequence[str]) -> bool:
    parts = name.split("/")
    for pattern in patterns:
        bare = pattern.strip("/")
        if "/" in bare:
            if fnmatch.fnmatchcase(name, bare) or name.startswith(f"{bare}/"):
                return True
        elif any(fnmatch.fnmatchcase(part, bare) for part in (parts[:-1] if pattern.endswith("/") else parts)):
            return True
    return False
