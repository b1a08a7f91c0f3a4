"""The agent, soon tired of ranks whose scripts have ended: `python -m support.quick_leaving -- <command>`. The agent
itself has no such switch.
"""

from __future__ import annotations

import os
import sys

from support.agent_rig import ROOT
from trainjob.agent.__main__ import main
from trainjob.agent.processes import leaving

AGENT = ("-m", "support.quick_leaving")
"""A Rig's `entry`."""
ENV = {"PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("operator", "worker-image", "tests"))}

if __name__ == "__main__":
    leaving.SAY_S, leaving.IDLE_S, leaving.LOOK_S = 0.5, 2.0, 0.5
    code = main()
    sys.stdout.flush()
    os._exit(code)
