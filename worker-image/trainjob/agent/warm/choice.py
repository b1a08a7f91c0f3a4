"""Whether ranks are forked from a warm parent, and what it imports. Pure, but for one look at the script's text.

Asked by `starter`. Where it is in doubt the answer is no, with the reason.
"""

from __future__ import annotations

import os
import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.processes import rank_command
from trainjob_api import command, contract, first_path

TORCH = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data")
AUTO = (*TORCH, "torch._dynamo")
"""What the first training step needs; the last is what the first optimizer imports, and takes as long as all others."""
_AMONG = rb"torch|lightning|transformers|accelerate|diffusers|fastai|timm|deepspeed"
_IMPORTS_TORCH = re.compile(rb"^[ \t]*(?:import|from)[ \t][^#\n]*(?:" + _AMONG + rb")", re.I | re.M)
_TRAINS = re.compile(
    rb"optim|parallel|prepare_model|compile|fsdp|trainer|lightning|transformers|accelerate|deepspeed", re.I
)
_PREFIXES = b"OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|ATEN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH"
_NAME = rb"""[brf]*["']((?:""" + _PREFIXES + rb""")_\w+)["']"""
_SETS = re.compile(
    rb"environb?\s*\[\s*" + _NAME + rb"\s*\]\s*(?:\+|\|)?=(?!=)"
    rb"|(?:environb?\s*\.\s*setdefault|putenv|setenv)\s*\(\s*" + _NAME + rb"|environb?\s*\.\s*update\s*\([^)]*?" + _NAME
)
"""A script gives itself a variable that torch, or what it computes with, reads once: when it is imported."""
_SETS_ANY = re.compile(
    rb"environb?\s*\[[^\]\n]*\]\s*[+|]?=(?!=)|environb?\s*\.\s*(?:setdefault|update)\s*\(|(?:put|set)env\s*\("
)
ROOM = 512 << 20
"""Bytes that a worker must have left: what the parent needs that imports torch, which its first rank would as well."""
ROOM_TO_LEARN = 1536 << 20
"""Beside ranks that train; two parents are there for a while."""


class Plan(NamedTuple):
    """What the parent is to import."""

    modules: Tuple[str, ...]
    optional: bool
    """What is not installed is no mistake."""


class Place(NamedTuple):
    """Where ranks are to run."""

    cwd: str
    has_devices: bool
    room: Optional[int]
    """Bytes of memory that can be had; None: nobody can tell."""


def why_not(wish: str, words: Sequence[str], place: Place) -> Optional[str]:
    """Why each rank is started in a new interpreter; None: it is forked."""
    if wish == contract.PREFORK_NEVER:
        return "spec.runtime.prefork is Never"
    if command.parse_python(words) is None:
        return "it is for `python script.py` and `python -m module`; a launcher or a shell starts its processes itself"
    if wish == contract.PREFORK_ALWAYS:
        return None
    if place.has_devices:
        return "this worker has accelerators (spec.runtime.prefork: Always forks there too)"
    if place.room is not None and place.room < ROOM:
        return f"this worker has {place.room >> 20} MiB of memory left, less than {ROOM >> 20}"
    name = _sets_too_late(words, place.cwd)
    if name is not None:
        return (
            f"the script sets {name}, which is read when torch is imported: a fork has imported it already. Give the "
            "variable to the job (--env, or the template's env), and ranks are forks"
        )
    return None


def plan(wish: Optional[Sequence[str]], words: Sequence[str], cwd: str) -> Plan:
    """What to import. `wish`: spec.runtime.preload, None for `auto`: what a script needs that
    imports torch."""
    if wish is not None:
        return Plan(tuple(wish), False)
    text = _text(words, cwd)
    if text is None:
        return Plan(AUTO, True)
    if not _IMPORTS_TORCH.search(text):
        return Plan((), True)
    return Plan(AUTO if _TRAINS.search(text) else TORCH, True)


def folder_of(words: Sequence[str], cwd: str) -> str:
    """Where the user's own code lies, of which nothing is imported ahead."""
    parsed = command.parse_python(words)
    return first_path.folder_of(None if parsed is None or parsed.is_module else parsed.target, cwd)


def why_not_learn(room: Optional[int]) -> Optional[str]:
    """Why no other parent is made beside ranks that train. `room`: as in Place."""
    if room is not None and room < ROOM_TO_LEARN:
        return f"this worker has {room >> 20} MiB of memory left, less than {ROOM_TO_LEARN >> 20}"
    return None


def sets_variables(words: Sequence[str], cwd: str) -> bool:
    """Whether the script's text changes its environment."""
    return _SETS_ANY.search(_text(words, cwd) or b"") is not None


def _sets_too_late(words: Sequence[str], cwd: str) -> Optional[str]:
    found = _SETS.search(_text(words, cwd) or b"")
    return None if found is None else next(name for name in found.groups() if name).decode()


def _text(words: Sequence[str], cwd: str) -> Optional[bytes]:
    """Of the script; None: it is not there yet, or a module that only Python finds."""
    parsed = command.parse_python(words)
    if parsed is None:
        return None
    path = parsed.target
    # Of modules those below the working folder, without importing anything to look for them.
    inside = path.replace(".", os.sep)
    for each in (f"{inside}.py", os.path.join(inside, "__main__.py")) if parsed.is_module else (path,):
        try:
            with open(os.path.join(cwd, each), "rb") as file:
                return file.read(1 << 20)
        except OSError:
            pass
    return None


def differing(rank: Mapping[str, str], parent: Mapping[str, str]) -> Optional[str]:
    """A variable that the rank is to have otherwise than the parent, in which libraries have read it by now."""
    for name in sorted({*rank, *parent} - rank_command.PLACE):
        if rank.get(name) != parent.get(name):
            return name
    return None
