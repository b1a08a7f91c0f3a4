"""How a fork becomes what `python script.py` would be: streams, environment, names, random states.

Called in a fork that has its order. Where it could not be the same (a module beside the script that hides one which is
imported already, a package that was installed anew since) it starts Python anew in its place.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
from importlib.machinery import PathFinder, all_suffixes
from typing import (
    AbstractSet,
    Container,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from trainjob.session import imported
from trainjob.session.warm import generators, offsets, places, title, unchanged
from trainjob.session.warm.birth import Birth
from trainjob_api import first_path
from trainjob_api.warm_messages import ENV_ROOM, FROM_GATE, Order, Plain, packet


def forget_room() -> None:
    """The parent's own variable is nobody's business."""
    os.environ.pop(ENV_ROOM, None)


class Ahead(NamedTuple):
    """What the parent's imports have left."""

    modules: AbstractSet[str]
    missing: AbstractSet[str]
    """What they have looked for in vain: packages do without, and remember that."""
    environ: Mapping[str, Tuple[Optional[str], Optional[str]]]
    """Variables that modules have set, changed or taken away: what was there before, and after."""
    front: Sequence[str]
    """What they have put in front of a script's own folder in sys.path."""
    installed: unchanged.Installed
    edited: unchanged.Edited
    unseeded: generators.Unseeded
    birth: Birth

    def changed(self) -> Optional[str]:
        """What would be imported otherwise by now; None: nothing."""
        return self.installed.changed() or self.edited.changed()


def become(order: Order, output: int, line: socket.socket, ahead: Ahead, folder: Optional[str]) -> Sequence[str]:
    """The command to run; all around it is as it should be. `line`: to the agent, closed by this."""
    flush()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order.environ)
    own = () if folder is None else (_first_path(order.command, folder),)
    front = (*own, *(path for path in order.front if path not in sys.path))
    hidden = next(filter(None, (_hidden_by(path, ahead.modules, ahead.missing) for path in front)), None)
    why = hidden or ahead.changed()
    if why is not None:
        line.send(packet(FROM_GATE, Plain(why)))
        with contextlib.suppress(OSError, ValueError):  # a limit that cannot be had again
            ahead.birth.again()
        os.execve(order.argv[0], list(order.argv), dict(order.environ))
    line.close()
    _change(ahead.environ)
    places.renew(order.environ)
    title.show(order.argv, order.environ)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(order.argv)
    # A script's own folder was in front before they came.
    imported.front = ahead.front
    del sys.path[: len(ahead.front)]
    if folder is not None:
        sys.path.insert(0, folder)
    # Last: there may be other files than when it was forked.
    importlib.invalidate_caches()
    return order.command


def flush() -> None:
    """The standard streams, whatever a module has made of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def changes(before: Mapping[str, str]) -> Dict[str, Tuple[Optional[str], Optional[str]]]:
    """Of the environment since then, as `Ahead` has them."""
    both = ((name, (before.get(name), os.environ.get(name))) for name in {*before, *os.environ})
    return {name: values for name, values in both if values[0] != values[1]}


def _change(environ: Mapping[str, Tuple[Optional[str], Optional[str]]]) -> None:
    """What a module would have found otherwise in this rank is the rank's."""
    for name, (before, after) in environ.items():
        if os.environ.get(name) != before:
            continue
        if after is None:
            del os.environ[name]
        else:
            os.environ[name] = after


def renew(ahead: Ahead) -> None:
    """What a process has for itself, and a fork has of its parent. At the gate, which is long before the order. Raises
    OSError.
    """
    offsets.have_own()
    _forget()
    ahead.unseeded.renew()
    _reseed()
    imported.ahead = frozenset(sys.modules)


def _first_path(words: Sequence[str], working: str) -> str:
    """What will stand in front of sys.path."""
    return first_path.folder_of(None if not words or words[0] == "-m" else words[0], working)


def _hidden_by(folder: str, preloaded: AbstractSet[str], missing: AbstractSet[str] = frozenset()) -> Optional[str]:
    """What of this folder or archive would be imported by a name that means something else already, or nothing."""
    # With nothing for those that were looked for in vain.
    files: Dict[str, str] = dict.fromkeys((name for name in missing if "." not in name), "")
    for name in {name.partition(".")[0] for name in preloaded}:
        module = sys.modules.get(name)
        # A package without a file of its own has folders, and gives way to a module of its name.
        file = imported.own(module, "__file__") or next(iter(imported.own(module, "__path__") or ()), None)
        if file is not None:
            files[name] = str(file)
    for name, path in _modules(folder, files) if os.path.isdir(folder) else _archived(folder, files):
        if not files[name]:
            return f"{path} is what modules that are imported ahead have looked for in vain"
        # Only of those that were found: each of some hundred would take longer than all else here.
        if not os.path.realpath(files[name]).startswith(os.path.realpath(path)):
            return f"{path} takes the place of a module that is imported ahead"
    return None


def _modules(folder: str, names: Container[str]) -> Iterator[Tuple[str, str]]:
    """Those of a folder that have one of these names, with their paths. A folder without code is data."""
    ends = all_suffixes()
    for entry in _entries(folder):
        name, dot, end = entry.partition(".")
        if name not in names:
            continue
        path = os.path.join(folder, entry)
        if f".{end}" in ends if dot else any(os.path.exists(os.path.join(path, f"__init__{each}")) for each in ends):
            yield name, path


def _archived(archive: str, names: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """Those of an archive; of what cannot be read none, as is told when it is run."""
    for name in names:
        spec = PathFinder.find_spec(name, [archive])
        if spec is not None and spec.origin is not None and spec.loader is not None:
            yield name, spec.origin


def _entries(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _forget() -> None:
    """What modules keep of the parent."""
    # Python itself leaves the parent's there.
    renew = getattr(threading.main_thread(), "_set_native_id", None)
    if renew is not None:
        renew()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        key = process.AuthenticationString(os.urandom(32))
        process.current_process().authkey = key
    for each in getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {}).values():
        each._pid = os.getpid()  # else what is to be done at exit is the parent's to do


def _reseed() -> None:
    """Each process begins with random numbers of its own. Python's own generator has been seeded by the fork."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
