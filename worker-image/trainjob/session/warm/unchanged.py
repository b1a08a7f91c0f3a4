"""Whether what a process has imported is still what would be imported: a package that was installed anew, a module of
an editable install that was edited, a file that takes another's place, a package that was missing and is there now.

Asked by `kept` before each job, and of what is installed, and of modules that lie elsewhere, by each `parent` and its
forks before each start. Files are told apart by inode, size and times; one that was changed while it was imported
counts as changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from importlib.abc import MetaPathFinder
from typing import Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

_State = Optional[Tuple[int, int, int, int]]
_PATHS = ".pth"
"""Such a file adds folders to sys.path, but in those alone that Python finds by itself. In all others (of PYTHONPATH,
of a project that is installed as it lies) it may be a model.
"""
_INSTALLED = (_PATHS, ".dist-info", ".egg-info", ".egg-link")
"""What says of a folder what is installed there: packages look for each other by it, and remember."""
_INSTALLED_CODE = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?/")
COARSE_NS = 50_000_000
"""The clock of a file system may be so far behind that of `time`."""
_SECOND = 10**9
_AHEAD_NS = 3600 * _SECOND
"""So far ahead may be the clock of a machine that serves files: a time beyond that says nothing."""
_MAPS = "/proc/self/maps"


class Names:
    """What imports have looked for in vain: packages do without, and remember that."""

    def __init__(self) -> None:
        self.missing: Set[str] = set()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of the imports meanwhile."""
        last = _Last(self.missing)
        sys.meta_path.append(last)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(last)


class _Last(MetaPathFinder):
    """Asked for what no other finds."""

    def __init__(self, missing: Set[str]) -> None:
        self._missing = missing

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: object = None) -> None:
        self._missing.add(name)


class Files:
    """Of this process, as they are when this is made."""

    def __init__(self, since: int, names: Optional[Names] = None) -> None:
        """`since`: before the first import, in nanoseconds since the epoch."""
        paths = {*_modules(), *_libraries(), *_archives()}
        self._states: Dict[str, _State] = {path: _state(path) for path in paths}
        asked = {*sys.modules, *(() if names is None else names.missing)}
        self._installed = Installed(frozenset(name.partition(".")[0] for name in asked))
        self._packages = {
            folder: (_state(folder), names_in, _taken(folder, names_in))
            for folder, names_in in _packages(asked).items()
        }
        self._late = _late(self._states, since)

    def changed(self) -> Optional[str]:
        """What is another now; None: nothing."""
        why = self._late or _other(self._states) or self._installed.changed()
        if why is not None:
            return why
        for folder, (state, names, taken) in self._packages.items():
            # Each time something comes or goes there is another state: caches of Python's do, too.
            other = () if _state(folder) == state else sorted(_taken(folder, names) ^ taken)
            if other:
                return _decides(folder, other[0])
        return None


class Installed:
    """What lies in the folders of sys.path, as it is when this is made."""

    def __init__(self, names: FrozenSet[str] = frozenset()) -> None:
        """`names`: of modules, also of such as are missing, whose places somebody may take."""
        self._sites = frozenset(_sites())
        self._names = names
        self._entries: Dict[str, FrozenSet[Tuple[str, _State]]] = {}
        self.widen()

    def widen(self) -> None:
        """Also to folders that imports have added to sys.path meanwhile."""
        self._entries.update({path: self._entries_of(path) for path in sys.path if path not in self._entries})

    def changed(self) -> Optional[str]:
        """What is another now; None: nothing."""
        for folder, entries in self._entries.items():
            new = sorted(name for name, _ in self._entries_of(folder) ^ entries)
            if new:
                return _decides(folder, new[0])
        return None

    def _entries_of(self, folder: str) -> FrozenSet[Tuple[str, _State]]:
        """What there may take the place of one of these, adds folders to sys.path, or tells of a package."""
        installed = tuple(end for end in _INSTALLED if end != _PATHS or folder in self._sites)
        return frozenset(
            (name, _state(os.path.join(folder, name)) if name.endswith(installed) else None)
            for name in _listed(folder)
            if name.endswith(installed) or name.partition(".")[0] in self._names
        )


def _sites() -> Iterator[str]:
    """Where Python itself looks for files that add folders."""
    site = sys.modules.get("site")  # not there with -S
    if site is not None:
        yield from site.getsitepackages()
        if site.ENABLE_USER_SITE:
            yield site.getusersitepackages()


class Edited:
    """Modules that lie elsewhere than what is installed (in a project that is installed as it lies, in a folder or an
    archive of PYTHONPATH), as they are when this is made: few, and people edit them.
    """

    def __init__(self, since: int) -> None:
        """`since`: as in `Files`."""
        paths = {*_elsewhere(_modules()), *_archives()}
        self._states = {path: _state(path) for path in paths}
        self._late = _late(self._states, since)

    def changed(self) -> Optional[str]:
        """What is another now; None: nothing."""
        return self._late or _other(self._states)


def latest(time_ns: int) -> int:
    """The last moment that a file's time may mean: some file systems (Lustre, ext3) know whole seconds alone."""
    return time_ns if time_ns % _SECOND else time_ns + _SECOND - 1


def _late(states: Mapping[str, _State], since: int) -> Optional[str]:
    until = time.time_ns() + _AHEAD_NS
    for path, state in states.items():
        # By the second time too: what a copy brings along from elsewhere has the first one of its original.
        if state is not None and since - COARSE_NS <= latest(max(state[2], state[3])) <= until:
            return f"{path} was changed while it was imported"
    return None


def _other(states: Mapping[str, _State]) -> Optional[str]:
    found = next((path for path, state in states.items() if _state(path) != state), None)
    return None if found is None else f"{found} has changed since it was imported"


def _decides(folder: str, name: str) -> str:
    return f"{os.path.join(folder, name)} may decide what is imported, and has changed"


def _packages(asked: Set[str]) -> Dict[str, FrozenSet[str]]:
    """The folders of packages, with the names that were asked for in them, also in vain."""
    within: Dict[str, Set[str]] = {}
    for name in asked:
        package, dot, last = name.rpartition(".")
        if dot:
            within.setdefault(package, set()).add(last)
    found: Dict[str, FrozenSet[str]] = {}
    for package, names in within.items():
        path = getattr(sys.modules.get(package), "__dict__", {}).get("__path__", ())
        for folder in path if path is not None else ():
            if isinstance(folder, str):
                found[folder] = found.get(folder, frozenset()) | names
    return found


def _taken(folder: str, names: FrozenSet[str]) -> FrozenSet[str]:
    """Entries of a package's folder that have one of these names."""
    return frozenset(entry for entry in _listed(folder) if entry.partition(".")[0] in names)


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        # By its own dictionary: modules that import what they are asked for are not asked.
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and os.path.isabs(file):
            yield file


def _elsewhere(paths: Iterable[str]) -> Iterator[str]:
    """Those that do not lie where packages are installed, though a link may be there that leads to them."""
    folders: Dict[str, str] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folders[folder], name)
        if not (_INSTALLED_CODE.search(path) and _INSTALLED_CODE.search(real)):
            yield path


def _archives() -> Iterator[str]:
    """Also those of which a folder inside is in sys.path."""
    for path in sys.path:
        while path and not os.path.exists(path):
            path = os.path.dirname(path)
        if os.path.isfile(path):
            yield path


def _libraries() -> Iterator[str]:
    with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if ".so" in os.path.basename(path[2]):
                yield "/" + path[2]


def _listed(folder: str) -> List[str]:
    try:
        return os.listdir(folder or os.curdir)
    except OSError:
        return []


def _state(path: str) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
