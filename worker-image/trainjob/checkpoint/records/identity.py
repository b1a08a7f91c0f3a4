"""The identity of a checkpoint, and with it the order of all checkpoints.

Used everywhere. Nothing else orders checkpoints: no clock, no listing order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(r"([1-9][0-9]{0,17})-([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


class CheckpointId(NamedTuple):
    """(run, attempt, index), compared in that order; as text `1-2-14`. Run and attempt count from 1."""

    run: int
    attempt: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here

    def __str__(self) -> str:
        return f"{self.run}-{self.attempt}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """The identity that `str()` wrote. Raises ValueError for anything else, other spellings of the same numbers
        included.
        """
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        made = cls(*map(int, found.groups())) if found else None
        if made is None or str(made) != text:
            raise ValueError(
                f"{text!r} is no checkpoint identity; one reads <run>-<attempt>-<index>, for example 1-2-14"
            )
        return made


def is_newer(one: str, other: str) -> bool:
    """Whether `one` names a newer checkpoint than `other`. What names none is older than all."""
    return _or_oldest(one) > _or_oldest(other)


def _or_oldest(text: str) -> CheckpointId:
    try:
        return CheckpointId.parse(text)
    except ValueError:
        return CheckpointId(0, 0, 0)
