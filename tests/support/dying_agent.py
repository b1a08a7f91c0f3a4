"""An agent that is killed, as by SIGKILL, at a chosen file operation in its staging area: `python -m support.dying_agent -- <command>`.

ENV says which: {"call": "replace", "target": "released.json", "after": false, "marker": path}. It strikes once; the marker tells that it did.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

ENV = "TRAINJOB_TEST_DIE_AT"


def arm() -> None:
    """Wrap that function of `os`."""
    plan: dict[str, Any] = json.loads(os.environ[ENV])
    real = getattr(os, plan["call"])

    def call(source: str, target: str, *more: Any, **fields: Any) -> Any:
        mine = str(plan["target"]) in os.fspath(target) and not os.path.exists(plan["marker"])
        if mine:
            os.close(os.open(plan["marker"], os.O_CREAT | os.O_EXCL))
            if plan["after"]:
                real(source, target, *more, **fields)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(source, target, *more, **fields)

    setattr(os, plan["call"], call)


if __name__ == "__main__":
    import sys

    from trainjob.agent.__main__ import main

    arm()
    sys.exit(main())
