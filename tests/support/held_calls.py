"""File-system calls of an agent or its storage child that stand still until a test lets them go: the counterpart of
`s3_held` for folders.

held = HeldCalls() Rig(..., entry=held_calls.AGENT, env=held.environment("trainjob.checkpoint.storage_child.child",
"link", "1-1-2/.trainjob/manifest.json", after=True)) ... held.wait() ... kill who made the call, or its parent ...
held.let_go()

In the processes, `python -m support.held_calls <module> ...` runs that module as `python -m <module> ...` would, with
one function of `os` wrapped.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
from typing import Any

from support.agent_rig import ROOT
from support.patience import HANG_S

AGENT = ("-m", "support.held_calls", "trainjob.agent")
"""A Rig's `entry`: an agent that is armed, and whose storage child is."""
PATH = {"PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("operator", "worker-image", "tests"))}
"""What such an agent needs in its environment, also where nothing is to be held."""
_ENV = "TRAINJOB_TEST_HOLD"


class HeldCalls:
    """One call is held: the first that is wanted."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._held: socket.socket | None = None
        self.call: str | None = None
        """The one that is held, or was."""

    def environment(self, module: str, call: str, key: str, *, after: bool) -> dict[str, str]:
        """For an agent: the first `os.<call>` of that module's process whose last path ends with `key` is held,
        before it is made or right after.
        """
        plan = {"module": module, "call": call, "key": key, "after": after, "port": self._server.getsockname()[1]}
        return {_ENV: json.dumps(plan), **PATH}

    def wait(self, timeout_s: float = HANG_S) -> bool:
        """Until a call is held; those that come later are not."""
        self._server.settimeout(timeout_s)
        try:
            self._held, _ = self._server.accept()
        except TimeoutError:
            return False
        self._server.close()
        self.call = self._held.recv(4096).decode()
        return True

    def let_go(self) -> None:
        """Whoever stands there, if it lives, goes on."""
        if self._held is not None:
            self._held.close()

    def close(self) -> None:
        """Nobody is held any more."""
        self._server.close()
        self.let_go()


def _arm(plan: dict[str, Any]) -> None:
    real = getattr(os, plan["call"])

    def call(*paths: Any, **fields: Any) -> Any:
        mine = os.fspath(paths[-1]).endswith(plan["key"])
        if mine and not plan["after"]:
            _stand_still(plan, paths[-1])
        done = real(*paths, **fields)
        if mine and plan["after"]:
            _stand_still(plan, paths[-1])
        return done

    setattr(os, plan["call"], call)


def _stand_still(plan: dict[str, Any], path: str) -> None:
    try:
        with socket.create_connection(("127.0.0.1", plan["port"])) as line:
            line.sendall(f"{plan['call']} {path}".encode())
            line.recv(1)
    except OSError:
        pass  # another one is held, or was


def _main() -> None:
    module = sys.argv[1]
    plan = json.loads(os.environ.get(_ENV, "{}"))
    if module == plan.get("module"):
        _arm(plan)
    if module == "trainjob.agent":
        from trainjob.agent.storing import storage

        storage.CHILD = ("-m", "support.held_calls", "trainjob.checkpoint.storage_child.child")
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
