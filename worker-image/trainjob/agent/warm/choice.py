"""Whether ranks are forked from a warm parent, and what it imports. Pure, but for one look at the script's text.

Asked by `starter`. Where it is in doubt the answer is no, with the reason.
"""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.processes import rank_command
from trainjob_api import command, contract, first_path

AUTO = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data", "torch._dynamo")
"""What the first training step needs; the last is what the first optimizer imports, and takes as long as all others."""
_SAYS_TORCH = re.compile(rb"torch|lightning|transformers|accelerate|diffusers|fastai|timm|deepspeed", re.I)
_DEVICES = re.compile(r"nvidia\d+|kfd|accel\d*|neuron\d+|habanalabs.*|hl\d+|davinci\d+|infiniband")
_NONE_VISIBLE = ("", "-1", "NoDevFiles")
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Plan(NamedTuple):
    """What the parent is to import."""

    modules: Tuple[str, ...]
    optional: bool
    """What is not installed is no mistake."""


def devices(names: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether this worker has an accelerator, by the names in /dev. The local backend hides those that a worker did not
    ask for.
    """
    found = any(_DEVICES.fullmatch(name) for name in names)
    return found and environ.get(VISIBLE, "all") not in _NONE_VISIBLE


def why_not(wish: str, words: Sequence[str], has_devices: bool) -> Optional[str]:
    """Why each rank is started in a new interpreter; None: it is forked."""
    if wish == contract.PREFORK_NEVER:
        return "spec.runtime.prefork is Never"
    if command.parse_python(words) is None:
        return "it is for `python script.py` and `python -m module`; a launcher or a shell starts its processes itself"
    if wish == contract.PREFORK_AUTO and has_devices:
        return "this worker has accelerators (spec.runtime.prefork: Always forks there too)"
    return None


def plan(wish: Optional[Sequence[str]], words: Sequence[str], cwd: str) -> Plan:
    """What to import. `wish`: spec.runtime.preload, None for `auto`: what a script needs that speaks of torch."""
    if wish is not None:
        return Plan(tuple(wish), False)
    text = _text(words, cwd)
    return Plan(AUTO if text is None or _SAYS_TORCH.search(text) else (), True)


def folder_of(words: Sequence[str], cwd: str) -> str:
    """Where the user's own code lies, of which nothing is imported ahead."""
    parsed = command.parse_python(words)
    return first_path.folder_of(None if parsed is None or parsed.is_module else parsed.target, cwd)


def _text(words: Sequence[str], cwd: str) -> Optional[bytes]:
    """Of the script; None: it is not there yet, or a module that only Python finds."""
    parsed = command.parse_python(words)
    if parsed is None or parsed.is_module:
        return None
    try:
        with open(os.path.join(cwd, parsed.target), "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def differing(rank: Mapping[str, str], parent: Mapping[str, str]) -> Optional[str]:
    """A variable that the rank is to have otherwise than the parent, in which libraries have read it by now."""
    for name in sorted({*rank, *parent} - rank_command.PLACE):
        if rank.get(name) != parent.get(name):
            return name
    return None
