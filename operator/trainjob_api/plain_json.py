"""Checks that a document which YAML produced holds nothing that JSON, and so the Kubernetes API, cannot hold.

Called by `validation.parse_trainjob` before anything else looks at the document: YAML may give dates, numbers and
booleans as keys, infinite numbers, and, through anchors, documents that contain themselves or unfold without end. Pure.
"""

from __future__ import annotations

import math
from typing import Any

from trainjob_api.problems import Problem, path_of

DEPTH_LIMIT = 48
"""Levels of nesting; a pod template needs about 15."""
SIZE_LIMIT = 50_000
"""Values in one document; more than an object of etcd's size holds in practice."""
INTEGER_LIMIT = 2**63

Path = tuple[str | int, ...]


def plain(document: Any) -> tuple[Any, list[Problem]]:
    """A copy of the document made of JSON values alone, and what had to be left out of it."""
    copier = _Copier()
    return copier.copy(document, ()), copier.problems


class _Copier:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._count = 0

    def copy(self, value: Any, path: Path) -> Any:
        self._count += 1
        if self._count > SIZE_LIMIT:
            if self._count == SIZE_LIMIT + 1:
                self._refuse(
                    path,
                    value,
                    f"the document has more than {SIZE_LIMIT} values; look for YAML anchors (&name, *name) that "
                    "multiply",
                )
            return None
        if len(path) > DEPTH_LIMIT:
            self._refuse(
                path,
                value,
                f"is nested deeper than {DEPTH_LIMIT} levels; look for a YAML anchor (&name) that contains itself",
            )
            return None
        if isinstance(value, dict):
            return self._copy_map(value, path)
        if isinstance(value, list | tuple):
            return [self.copy(item, (*path, at)) for at, item in enumerate(value)]
        return self._copy_scalar(value, path)

    def _copy_map(self, value: dict[Any, Any], path: Path) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(key, str) and _encodes(key):
                copied[key] = self.copy(item, (*path, key))
            else:
                self._refuse(
                    path,
                    key,
                    "a key must be text; put it in quotes (YAML reads on, off, yes, no and digits as something else)",
                )
        return copied

    def _copy_scalar(self, value: Any, path: Path) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            if _encodes(value):
                return value
            self._refuse(path, value, "is text with a broken Unicode character; write it again")
        elif isinstance(value, int):
            if abs(value) < INTEGER_LIMIT:
                return value
            self._refuse(path, "a huge number", "is beyond 64 bits; write a smaller number")
        elif isinstance(value, float):
            if math.isfinite(value):
                return value
            self._refuse(path, str(value), "must be a finite number")
        else:
            kind = type(value).__name__
            self._refuse(path, str(value)[:40], f"YAML reads this as a {kind}; put it in quotes to make it text")
        return None

    def _refuse(self, path: Path, value: Any, message: str) -> None:
        if len(self.problems) < 100:
            self.problems.append(Problem(path_of(path), value, message))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
