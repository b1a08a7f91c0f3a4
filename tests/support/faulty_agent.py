"""An agent in which a callback fails at SIGWINCH, as a program: `python faulty_agent.py -- <command>`."""

from __future__ import annotations

import os
import signal
import sys

import trainjob.agent.__main__ as program
from trainjob.agent.agent import Agent


class Faulty(Agent):
    """Whole until then."""

    async def run(self) -> int:
        self._loop.add_signal_handler(signal.SIGWINCH, _fail)
        return await super().run()


def _fail() -> None:
    raise AssertionError("a mistake in the agent")


if __name__ == "__main__":
    program.Agent = Faulty  # type: ignore[misc]
    code = program.main()
    sys.stdout.flush()
    os._exit(code)
