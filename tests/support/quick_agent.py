"""The agent with its patience shortened, as a program: `python quick_agent.py <seconds> -- <command>`. The agent
itself has no such switch.

`<seconds>` may be `<seconds>@<file>`: the patience is short from the moment that the file exists, so that a slow start
on a busy machine is not taken for a coordinator that went away.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import trainjob.agent.agent
import trainjob.agent.attempts.awaited
from trainjob.agent.__main__ import main
from trainjob_api import contract

TERMINATION_LOG = "QUICK_AGENT_TERMINATION_LOG"
"""Variable: where the file lies that a kubelet would have made."""


def shorten(patience: str) -> None:
    """Set the agent's patience, now or once the file is there."""
    seconds, _, file = patience.partition("@")
    while file and not os.path.exists(file):
        time.sleep(0.02)
    trainjob.agent.agent.LONELY_S = float(seconds)


if __name__ == "__main__":
    contract.TERMINATION_LOG = os.environ.get(TERMINATION_LOG, contract.TERMINATION_LOG)
    threading.Thread(target=shorten, args=(sys.argv.pop(1),), daemon=True).start()
    trainjob.agent.agent.LONELY_POLL_S = 0.02
    #     trainjob.agent.attempts.awaited.PARTED_S = 2.0
    code = main()
    sys.stdout.flush()
    os._exit(code)
