"""A checkpoint of Transformers' Trainer in its output folder, which workers may share; nothing of the library."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tempfile
import time
from typing import Dict

from trainjob.session.errors import TrainJobError

STATE = "trainer_state.json"
_BRINGING = ".bringing-"
_LEFT_S = 3600.0
_MOST_TRIES = 100


def place(source: str, target: str) -> None:
    """A copy, whole or not at all. Workers that share the folder may all come with the same one: the first counts. What
    a killed rank left half written is replaced.
    """
    if not os.path.isdir(source) or _is_alike(target, source):
        return
    parent = _made(os.path.dirname(target))
    _sweep(parent)
    made = tempfile.mkdtemp(dir=parent, prefix=_BRINGING)
    aside = tempfile.mkdtemp(dir=parent, prefix=_BRINGING)
    try:
        shutil.copytree(source, made, dirs_exist_ok=True)
        os.chmod(made, 0o777 & ~_umask())
        _put(made, target, aside, source)
    finally:
        for left in (made, aside):
            shutil.rmtree(left, ignore_errors=True)


def _put(made: str, target: str, aside: str, source: str) -> None:
    """The first copy stays where it is: others may read it already. Only what stands there and is not alike goes aside.
    Another worker may do the same between any two of these calls: its copy is found alike, or has gone aside too, and
    the next try succeeds.
    """
    for number in range(_MOST_TRIES):
        with contextlib.suppress(OSError):
            os.rename(made, target)
            return
        if _is_alike(target, source):
            return
        with contextlib.suppress(OSError):
            os.rename(target, os.path.join(aside, str(number)))
    raise TrainJobError(f"{target} could not be put in its place: other processes keep changing it")


def _is_alike(target: str, source: str) -> bool:
    """Sizes alone would not do: an earlier job may have left a folder of the same name. The Trainer's state has its
    whole log. What goes aside under the comparison is not alike.
    """
    try:
        is_same = filecmp.cmp(os.path.join(target, STATE), os.path.join(source, STATE), shallow=False)
    except OSError:
        return False
    return is_same and _sizes(target) == _sizes(source)


def _sizes(folder: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found[os.path.relpath(os.path.join(path, name), folder)] = os.path.getsize(os.path.join(path, name))
    return found


def _sweep(parent: str) -> None:
    """What killed ranks left of their copies."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            if name.startswith(_BRINGING) and time.time() - os.path.getmtime(path) > _LEFT_S:
                shutil.rmtree(path, ignore_errors=True)


def _made(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    return folder


def _umask() -> int:
    value = os.umask(0o022)
    os.umask(value)
    return value
