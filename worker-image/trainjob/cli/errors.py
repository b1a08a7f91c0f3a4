"""The one error that commands raise: what happened, what to do next, the exit code.

`main` prints it and ends; no command prints an error or calls sys.exit itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from trainjob.screen import streams
from trainjob_api.contract import CLI_ERROR

AGAIN = "<again>"
"""In a next step, what was typed: `main` puts its words there."""
_LONGEST = 400
"""Characters of a command that is said; a longer one is in the terminal above."""


def for_each(names: Sequence[str], do: Callable[[str], int]) -> int:
    """Of a command that takes several names: one that cannot be done keeps no other from being done. The worst exit
    code; a single name's error is raised as it is.
    """
    if len(names) == 1:
        return do(names[0])
    codes = []
    for name in dict.fromkeys(names):
        try:
            codes.append(do(name))
        except CommandError as error:
            streams.say(f"tj: {error}", f"next: {error.next_step}")
            codes.append(error.code)
    return max(codes, default=0)


def with_command(next_step: str, argv: Sequence[str]) -> str:
    """A next step in which `AGAIN` is the very command."""
    typed = shlex.join(["tj", *argv])
    short = len(typed) <= _LONGEST and "\n" not in typed
    return next_step.replace(AGAIN, f"`{typed}`" if short else "the same command again")


class CommandError(Exception):
    """A command cannot do what it was asked to do."""

    def __init__(self, message: str, *, next_step: str, code: int = CLI_ERROR) -> None:
        super().__init__(message)
        self.next_step = next_step
        """One sentence or command that gets the user on; printed on its own line."""
        self.code = code
