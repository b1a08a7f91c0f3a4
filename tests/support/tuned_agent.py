"""The agent with some of its times changed, as a program: `python tuned_agent.py trainjob.agent.x.NAME=0.2 ... --
<command>`. The agent itself has no such switch.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from trainjob.agent.__main__ import main


def entry(**times: float) -> tuple[str, ...]:
    """For `Rig(entry=...)`: dots of the module's name are written as two underscores, from `trainjob.agent` on."""
    return str(Path(__file__)), *(f"trainjob.agent.{name.replace('__', '.')}={value}" for name, value in times.items())


def tune(setting: str) -> None:
    """Set one constant; it must be there already."""
    place, _, value = setting.partition("=")
    module, _, name = place.rpartition(".")
    found = importlib.import_module(module)
    assert isinstance(getattr(found, name), float), f"{place} is no time"
    setattr(found, name, float(value))


if __name__ == "__main__":
    while sys.argv[1] != "--":
        tune(sys.argv.pop(1))
    code = main()
    sys.stdout.flush()
    os._exit(code)
