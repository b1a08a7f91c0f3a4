"""Names of modules as one text, as agents pass on what they have learned to import ahead: bounded, and data only. And
as a list in a file, as a rank writes it (`session.imported`).

Standard library only, Python 3.9: told by a warm parent (`session.warm.learned`), carried by the operator, read by
another agent (`agent.warm.learning`).
"""

from __future__ import annotations

import json
from typing import Iterable, List

from trainjob_api import contract

_BETWEEN = ","


def text_of(names: Iterable[str]) -> str:
    """As many of them as there is room for, the last ones: what a module imports stands before it. A package is
    imported with any module of it, and left out.
    """
    named = list(dict.fromkeys(filter(_is_name, names)))
    packages = {name[:at] for name in named for at, letter in enumerate(name) if letter == "."}
    told: List[str] = []
    room = contract.MODULES_LIMIT + len(_BETWEEN)
    for name in reversed(named):
        if name not in packages and len(name) + len(_BETWEEN) <= room:
            told.append(name)
            room -= len(name) + len(_BETWEEN)
    return _BETWEEN.join(reversed(told))


def names_in(text: object) -> List[str]:
    """What of it names modules: it comes from somebody else."""
    if not isinstance(text, str):
        return []
    return list(dict.fromkeys(filter(_is_name, text[: contract.MODULES_LIMIT].split(_BETWEEN))))


def listed(path: str) -> List[str]:
    """In such a file; empty: there is none, or it makes no sense."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
