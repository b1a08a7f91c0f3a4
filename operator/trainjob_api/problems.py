"""What is wrong with a TrainJob, in words for the person who wrote it.

Made by `shape.py`, `template_rules.py` and `validation.py`; shown by the CLI, the launcher and the operator's
InvalidSpec condition. A problem names the field as it stands in YAML, what stands there, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

VALUE_LIMIT = 80
"""Characters of a value that a problem quotes."""

PROBLEMS_SHOWN = 20
"""Problems that the text of one error lists; the rest are counted."""


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""The value of a problem whose field is missing."""


@dataclass(frozen=True)
class Problem:
    """One thing to change: `field` in camelCase (`spec.failurePolicy.rules[0].exitCodes[1]`), its value, what would
    be right.
    """

    field: str
    value: Any
    message: str

    def __str__(self) -> str:
        place = self.field or "the document"
        return (
            f"{place}: {self.message}"
            if self.value is ABSENT
            else f"{place}: {self.message} (it is {quoted(self.value)})"
        )


class InvalidTrainJob(ValueError):
    """A document that is no valid TrainJob. `problems` has them all; the text is for people."""

    def __init__(self, problems: Sequence[Problem], name: str = "") -> None:
        self.problems = tuple(problems)
        self.name = name
        super().__init__(self._text())

    def _text(self) -> str:
        count = len(self.problems)
        head = f"TrainJob {quoted(self.name)}" if self.name else "this TrainJob"
        lines = [f"{head} has {count} problem{'s' if count != 1 else ''}:"]
        lines += [f"  {problem}" for problem in self.problems[:PROBLEMS_SHOWN]]
        if count > PROBLEMS_SHOWN:
            lines.append(f"  ... and {count - PROBLEMS_SHOWN} more")
        return "\n".join(lines)


def quoted(value: Any) -> str:
    """A value as it would stand in YAML's JSON form, on one line and cut to VALUE_LIMIT characters."""
    if isinstance(value, dict):
        text = "a map {" + ", ".join(str(key) for key in list(value)[:8]) + "}"
    elif isinstance(value, list):
        flat = len(value) <= 20 and not any(isinstance(item, dict | list) for item in value)
        text = _scalar(value) if flat else f"a list of {len(value)}"
    else:
        text = _scalar(value)
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 3] + "..."


def _scalar(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return f"a {type(value).__name__}"


def path_of(steps: Sequence[str | int]) -> str:
    """`("spec", "rules", 0, "action")` -> `spec.rules[0].action`."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
