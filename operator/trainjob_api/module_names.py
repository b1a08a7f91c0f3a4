"""Names of modules as one text, as agents pass on what they have learned to import ahead: bounded, and data only.

Standard library only, Python 3.9: told by a warm parent (`session.warm.learned`), carried by the operator, read by
another agent (`agent.warm.learning`).
"""

from __future__ import annotations

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


def _is_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
