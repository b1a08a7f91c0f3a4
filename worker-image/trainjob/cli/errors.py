"""The one error that commands raise: what happened, what to do next, the exit code.

`main` prints it and ends; no command prints an error or calls sys.exit itself.
"""

from __future__ import annotations

from trainjob_api.contract import CLI_ERROR


class CommandError(Exception):
    """A command cannot do what it was asked to do."""

    def __init__(self, message: str, *, next_step: str, code: int = CLI_ERROR) -> None:
        super().__init__(message)
        self.next_step = next_step
        """One sentence or command that gets the user on; printed on its own line."""
        self.code = code
