"""The fields of an agent's report, bounded: what is too long is cut, what is not finite is dropped, and of a list that
is too long the rest is left out before any of it is looked at.

Used by `report_tables.py` and `reports.py`, which put them together; `clean` is for whatever text comes from a pod.
"""

from __future__ import annotations

import sys
import unicodedata
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainjob_api import contract

NAME_LIMIT = 253
"""Characters of a name, a UID, an address."""
PATH_LIMIT = 1024
RANKS_LIMIT = 256
"""Ranks of one pod that are read: more than any machine runs."""
PEERS_LIMIT = 10_000
"""Members of an attempt."""
WORD_FIELDS = 32
"""Fields of an instruction that an agent may acknowledge; ours have ten."""
COUNT_LIMIT = 2**53
"""Largest whole number that every JSON reader keeps exactly."""
TIME_LIMIT = 32_503_680_000.0
"""Seconds since the epoch: the year 3000."""
_NUMBERS = (int, float)
_SCALARS = (int, float, type(None))


def clean(text: str, limit: int, *, tail: bool = False) -> str:
    """Without control characters (terminal escapes) and broken Unicode, cut to the limit."""
    text = text[-limit:] if tail else text[:limit]
    if text.isprintable():  # as nearly every text of a report is; a look at each character costs more than all else
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "�" for c in text)


def text_of(limit: int, *, tail: bool = False) -> BeforeValidator:
    return BeforeValidator(lambda value: clean(value, limit, tail=tail) if isinstance(value, str) else value)


def _instant(value: Any) -> Any:
    """A time that no calendar holds counts as not given."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return value if 0.0 <= value <= TIME_LIMIT else None
    return value


def _seconds(value: Any) -> Any:
    """A length that no clock measures counts as none."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return float(value) if 0.0 <= value <= TIME_LIMIT else 0.0
    return value


def _share(value: Any) -> Any:
    """0 to 1; what is none counts as nothing."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return min(1.0, float(value)) if value >= 0 else 0.0
    return value


def _number(value: Any) -> Any:
    """A whole number that not every JSON reader keeps exactly counts as not given."""
    return None if isinstance(value, int) and abs(value) > COUNT_LIMIT else value


def _metrics(value: Any) -> Any:
    """The first METRICS_LIMIT finite numbers; a whole number that no float holds is none."""
    if not isinstance(value, dict):
        return value
    numbers = {
        k: v
        for k, v in value.items()
        if isinstance(v, _NUMBERS) and not isinstance(v, bool) and -sys.float_info.max <= v <= sys.float_info.max
    }
    return {
        clean(str(name), NAME_LIMIT): float(number) for name, number in list(numbers.items())[: contract.METRICS_LIMIT]
    }


def _shared(value: Any) -> Any:
    """All agents of a job say nearly the same, for as long as it runs: one copy."""
    return sys.intern(clean(value, contract.MODULES_LIMIT)) if isinstance(value, str) else value


def first(count: int) -> BeforeValidator:
    """Of a list that is too long, before any of it is looked at."""
    return BeforeValidator(lambda value: value[:count] if isinstance(value, list) else value)


def instruction(value: Any) -> Any:
    """An instruction as ours are: short, flat but for the workers that are to go and the trackers that are fed. What is
    none of them counts as not acknowledged.
    """
    if not isinstance(value, dict):
        return value
    tables = [part for part in value.values() if isinstance(part, dict)]
    lists = [part for part in value.values() if isinstance(part, list)]
    flat = {name: part for name, part in value.items() if not isinstance(part, dict | list)}
    good = len(tables) <= 1 and len(lists) <= 1 and _is_flat(flat, WORD_FIELDS)
    good = good and all(_is_flat(t, contract.LEAVING_LIMIT) for t in tables) and all(map(_are_words, lists))
    if not good or not all(len(name) <= NAME_LIMIT for name in value):
        return None
    # All agents of an attempt acknowledge nearly the same, for as long as their polls are open: one copy of each word.
    return {sys.intern(name): sys.intern(part) if type(part) is str else part for name, part in value.items()}


def _is_flat(table: dict[str, Any], limit: int) -> bool:
    return len(table) <= limit and all(
        len(name) <= NAME_LIMIT
        and (len(text) <= 2 * contract.MESSAGE_LIMIT if isinstance(text, str) else isinstance(text, _SCALARS))
        for name, text in table.items()
    )


def _are_words(found: list[Any]) -> bool:
    """As spec.tracking has them."""
    return len(found) <= contract.TRACKED_LIMIT and all(
        isinstance(word, str) and len(word) <= contract.TRACKING_LIMIT for word in found
    )


Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=r"^[\x21-\x7e]+$")]
Word = Annotated[str, text_of(NAME_LIMIT)]
Path = Annotated[str, text_of(PATH_LIMIT)]
Message = Annotated[str, text_of(contract.MESSAGE_LIMIT)]
Stacks = Annotated[str, text_of(contract.STACKS_LIMIT)]
Modules = Annotated[str, BeforeValidator(_shared)]
Count = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]
Share = Annotated[float, BeforeValidator(_share)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Code = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Instant = Annotated[float | None, BeforeValidator(_instant)]
Length = Instant
"""Seconds that are not known yet, or that no clock measures, are not given."""
Number = Annotated[int | None, BeforeValidator(_number)]
"""A user's own count (step, epoch): whatever it is, it must not make the whole report unreadable."""
Metrics = Annotated[dict[str, float], BeforeValidator(_metrics)]
