"""What the warm parent imports: the modules that it is told, and nothing from the folder of the user's script.

A job's own code may be another in the next attempt, and what a process has imported stays as it was.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import AbstractSet, List, Optional, Sequence

from trainjob.session import imported, torch_folder
from trainjob.session.warm import places
from trainjob_api import contract

OURS = ("trainjob.session.calls", "trainjob.session.contents", "trainjob.checkpoint.records.layout")
"""With what they import, what get_checkpoint() and the first report() need. Importing them keeps nothing of a rank."""


class NotThese(Exception):
    """They cannot be imported ahead; the text says why."""


def bring(names: Sequence[str], folder: str, optional: bool) -> List[str]:
    """Import them, in this order; those that are not installed. `optional`: those are not worth a word. Raises
    NotThese.
    """
    missing: List[str] = []
    before = frozenset(sys.modules)
    for name in names:
        try:
            with places.watched(defaults=False) as read:
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise NotThese(f"the import of {name} failed: {error}") from None
            if not optional:
                missing.append(name)
        except BaseException as error:  # a module may raise anything, SystemExit included
            raise NotThese(f"the import of {name} failed: {type(error).__name__}: {error}") from None
        kept = None if optional else next((each for each in read if each != places.ALL), None)
        if kept is not None:  # of torch, which is imported for who did not ask for it, it is known what it reads
            raise NotThese(
                f"{name} reads {kept} while it is imported, which each rank has its own of. Leave it out of "
                "spec.runtime.preload"
            )
    torch_folder.take_away()
    why = strange(before, folder)
    if why is not None:
        raise NotThese(f"{why}. Leave it out of spec.runtime.preload")
    return missing


def strange(before: AbstractSet[str], folder: str) -> Optional[str]:
    """Why what was imported since must not be: something of it is the job's own."""
    name = next((name for name in sys.modules if name not in before and _is_users(sys.modules[name], folder)), None)
    if name is None:
        return None
    return f"module {name} lies beside the script, in {folder}: code that may change is not imported ahead"


def _is_users(module: Optional[types.ModuleType], folder: str) -> bool:
    file = imported.own(module, "__file__")
    # torch.ops and its like name files that never were.
    if not folder or not isinstance(file, str) or not os.path.exists(file) or not _below(file, folder):
        return False
    # An environment, or this library, may lie below the folder of the script.
    libraries = [sys.prefix, sys.exec_prefix, sys.base_prefix, *_own_folders()]
    return not any(_below(file, library) and _below(library, folder) for library in libraries)


def _own_folders() -> List[str]:
    # This module is trainjob.session.warm.preload.
    session = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [os.path.dirname(session), os.path.dirname(os.path.abspath(contract.__file__))]


def _below(path: str, folder: str) -> bool:
    folder = os.path.realpath(folder)
    return os.path.commonpath([os.path.realpath(path), folder]) == folder
