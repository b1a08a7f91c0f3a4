"""The agent with its patience shortened, as a program: `python quick_agent.py <seconds> -- <command>`. The agent
itself has no such switch.
"""

from __future__ import annotations

import os
import sys

import trainjob.agent.agent
from trainjob.agent.__main__ import main
from trainjob_api import contract

TERMINATION_LOG = "QUICK_AGENT_TERMINATION_LOG"
"""Variable: where the file lies that a kubelet would have made."""

if __name__ == "__main__":
    contract.TERMINATION_LOG = os.environ.get(TERMINATION_LOG, contract.TERMINATION_LOG)
    trainjob.agent.agent.LONELY_S = float(sys.argv.pop(1))
    trainjob.agent.agent.LONELY_POLL_S = 0.02
    code = main()
    sys.stdout.flush()
    os._exit(code)
