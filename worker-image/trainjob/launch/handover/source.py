"""What the source of a training function says of ranks that are forks: what to import ahead for it, and why not to.

Read in the launcher, which has the source, and carried in the payload's header to the agents, which do not. Called by
the trainer, on this machine and for a cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from trainjob.launch.handover import payload
from trainjob_api import contract
from trainjob_api.contract import FunctionCode

_GROUP = b"import torch.distributed"
"""Whatever the function imports, a rank that makes a process group before it imports this."""
_INSTALLED = ("site-packages", "dist-packages")


def read(loop: Callable[..., Any], *, framework: str) -> FunctionCode | None:
    """Of its module, and of the modules beside that which it imports. None: there is no file (a notebook), or it is an
    installed package, beside which everything lies. `framework`: what is set up before it.
    """
    from trainjob.agent.warm import choice, variables
    from trainjob.agent.warm.script import Script

    found = _command_of(payload.module_of(loop))
    own = [] if found is None else Script(*found).texts()
    if not own:
        return None
    texts = [*own, _GROUP] if framework == payload.TORCH else own
    return {
        "doubt": choice.doubt(contract.PREFORK_AUTO, texts),
        "modules": list(choice.plan(None, texts).modules),
        "sets_variables": variables.sets_any(texts),
        "serves": choice.serves(own),
    }


def _command_of(name: str) -> tuple[list[str], str] | None:
    """How that module would be run, and in which folder."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not os.path.exists(path) or any(part in path for part in _INSTALLED):
        return None
    path = os.path.abspath(path)
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is None:
            return ["python", path], os.path.dirname(path)
        name = spec.name
        if name.startswith("trainjob."):  # a process of ours, into which the function was brought
            return None
    root = os.path.dirname(path)
    for _ in name.split(".")[1:]:
        root = os.path.dirname(root)
    return ["python", "-m", name], root
