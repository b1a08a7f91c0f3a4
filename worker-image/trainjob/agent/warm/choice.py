"""Whether ranks are forked from a warm parent, and what it imports. Pure: the texts are of `script`.

Asked by `starter`. Where it is in doubt the answer is no, with the reason.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.processes import rank_command
from trainjob_api import command, contract

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
_HIDES = re.compile(rb"sys\s*\.\s*path\s*(?:\.\s*insert\s*\(|=(?!=)|\[[^\]\n]*\]\s*=(?!=))")
"""It may bring modules that take the place of installed ones."""
_SERVES = re.compile(rb"\bTCPStore\s*\(")
"""It may want the port on which the ranks' store is served beside them."""
_DOUBTS = (
    (
        _SETS,
        "the script sets {}, which is read when torch is imported: a fork has imported it already. Give the variable "
        "to the job (--env, or the template's env), and ranks are forks",
    ),
    (
        _HIDES,
        "the script puts folders in front of sys.path: what they hide may have been imported ahead. With "
        "sys.path.append(), or with PYTHONPATH given to the job (--env, or the template's env), ranks are forks",
    ),
    (_SERVES, "the script makes a TCPStore, and where ranks are forks theirs is served beside them"),
)
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
    return None


def doubt(wish: str, texts: Sequence[bytes]) -> Optional[str]:
    """Why ranks of a script with these texts start in new interpreters; None: forks behave as those would."""
    if wish != contract.PREFORK_AUTO:
        return None
    for pattern, why in _DOUBTS:
        found = next((match for match in map(pattern.search, texts) if match is not None), None)
        if found is not None:
            return why.format(b"".join(filter(None, found.groups())).decode())
    return None


def plan(wish: Optional[Sequence[str]], texts: Sequence[bytes]) -> Plan:
    """What to import. `wish`: spec.runtime.preload, None for `auto`: what a script needs that imports torch."""
    if wish is not None:
        return Plan(tuple(wish), False)
    if texts and not any(map(_IMPORTS_TORCH.search, texts)):
        return Plan((), True)
    return Plan(TORCH if texts and not any(map(_TRAINS.search, texts)) else AUTO, True)


def why_not_learn(room: Optional[int]) -> Optional[str]:
    """Why no other parent is made beside ranks that train. `room`: as in Place."""
    if room is not None and room < ROOM_TO_LEARN:
        return f"this worker has {room >> 20} MiB of memory left, less than {ROOM_TO_LEARN >> 20}"
    return None


def sets_variables(texts: Sequence[bytes]) -> bool:
    """Whether the script changes its environment."""
    return any(map(_SETS_ANY.search, texts))


def differing(rank: Mapping[str, str], parent: Mapping[str, str]) -> Optional[str]:
    """A variable that the rank is to have otherwise than the parent, in which libraries have read it by now."""
    for name in sorted({*rank, *parent} - rank_command.PLACE):
        if rank.get(name) != parent.get(name):
            return name
    return None
