"""The agent with some of its times changed, as a program: `python tuned_agent.py [module with its main] NAME=0.2 ... --
<command>`, NAME with its module. The agent itself has no such switch.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

AGENT = "trainjob.agent.__main__"
LOCAL = "trainjob.launch.local.pod"


def entry(main: str = AGENT, /, **times: float | str) -> tuple[str, ...]:
    """For `Rig(entry=...)`: dots of the module's name are written as two underscores, from `trainjob.agent` on."""
    settings = [f"trainjob.agent.{name.replace('__', '.')}={value}" for name, value in times.items()]
    return str(Path(__file__)), main, *settings


def tune(setting: str) -> None:
    """Set one constant; it must be there already."""
    place, _, value = setting.partition("=")
    module, _, name = place.rpartition(".")
    found = importlib.import_module(module)
    kind = type(getattr(found, name))
    assert kind in (float, str), f"{place} is neither a time nor a place"
    setattr(found, name, kind(value))


if __name__ == "__main__":
    main = importlib.import_module(sys.argv.pop(1)).main
    while sys.argv[1] != "--":
        tune(sys.argv.pop(1))
    code = main()
    sys.stdout.flush()
    os._exit(code)
