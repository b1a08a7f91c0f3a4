"""The Lightning that the script uses, of the two packages that there are."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from trainjob.integrations.needed import MissingLibraryError


def _lightning() -> Any:
    """The package that the script has imported itself, of the two that there are: their classes know nothing of each
    other.
    """
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", "pytorch_lightning"):
                raise
    raise MissingLibraryError("lightning is not installed here: pip install 'lightning>=2.4'")


pl: Any = _lightning()
