"""What a rank's script had imported by its first step, for the agent: it may have that imported ahead from then on.

Called by `milestones`, in the one rank of a worker that is asked (ENV_LEARN names the file). What cannot be told is
not: nothing of this may disturb a step.
"""

from __future__ import annotations

import json
import os
import re
import sys
import types
from typing import AbstractSet, Any, List, Sequence

from trainjob_api import contract

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Other code may be another in the next attempt."""
_OURS = ("trainjob", "trainjob_api")
_OURS_AHEAD = re.compile(r"trainjob\.(torch|integrations|lightning|huggingface|deepspeed)(\.|$)")
"""Of our own modules those that keep nothing of a rank when imported. The parent runs the same code anyway."""
ahead: AbstractSet[str] = frozenset()
"""What was imported before the script began; set in a fork."""
front: Sequence[str] = ()
"""What that has put in front of sys.path, for `rank`."""


def tell() -> None:
    """Once, with the first step. The file is there whole, or not at all."""
    path = os.environ.get(contract.ENV_LEARN)
    if not path:
        return
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(_names(), file)
        os.replace(path + ".new", path)
    except (OSError, ValueError):
        pass


def _names() -> List[str]:
    """In the order in which their import ended."""
    return [name for name, module in list(sys.modules.items()) if name not in ahead and _is_worth_telling(name, module)]


def may_be_ahead(name: str) -> bool:
    """By its name: of our own modules some keep what is a rank's."""
    return name.partition(".")[0] not in _OURS or _OURS_AHEAD.match(name) is not None


def _is_worth_telling(name: str, module: object) -> bool:
    is_ours = name.partition(".")[0] in _OURS
    return may_be_ahead(name) and (is_ours or _is_installed(module))


def _is_installed(module: object) -> bool:
    file = own(module, "__file__")
    return isinstance(file, str) and any(part in file for part in _INSTALLED)


def own(module: object, name: str) -> Any:
    """What a module has by this name in its own dictionary: some import what they are asked for, or answer as they
    like.
    """
    return module.__dict__.get(name) if issubclass(type(module), types.ModuleType) else None
