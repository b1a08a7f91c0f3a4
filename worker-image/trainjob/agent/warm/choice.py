"""Whether ranks are forked from a warm parent, and what it imports. Pure: the texts are of `script`.

Asked by `starter`. Where it is in doubt the answer is no, with the reason.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob.agent.processes import rank_command
from trainjob.agent.warm import variables
from trainjob_api import command, contract

TORCH = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data")
AUTO = (*TORCH, "torch._dynamo")
"""What the first training step needs; the last is what the first optimizer imports, and takes as long as all others."""
_AMONG = rb"torch|lightning|transformers|accelerate|diffusers|fastai|timm|deepspeed"
_IMPORTS_TORCH = re.compile(rb"^[ \t]*(?:import|from)[ \t][^#\n]*(?:" + _AMONG + rb")", re.I | re.M)
_TRAINS = re.compile(
    rb"optim|parallel|prepare_model|torch\s*\.\s*compile|fsdp|trainer|lightning|transformers|accelerate|deepspeed", re.I
)
_HIDES = re.compile(
    rb"sys\s*\.\s*path\s*(?:\.\s*(?:insert|reverse|sort)\s*\(|=(?!=)|\[[^\]\n]*\]\s*=(?!=))"
    rb"|\bfrom\s+sys\s+import\s[^\n]*\bpath\b|\baddsitedir\b"
)
"""It may bring modules that take the place of installed ones."""
_SWAPS = re.compile(rb"sys\s*\.\s*(?:modules\s*\[[^\]\n]*\]\s*=(?!=)|(?:meta_path|path_hooks)\b)")
"""It may put something else in a module's place before that is imported."""
_SETS_PORT = re.compile(rb"""\[\s*["']MASTER_PORT["']\s*\]\s*=(?!=)|\bsetdefault\(\s*["']MASTER_PORT["']""")
_SERVES = (
    (re.compile(rb"\bTCPStore\b"), "names TCPStore"),
    (re.compile(rb"\bjax\s*\.\s*distributed\b|\bfrom\s+jax\s+import\s[^\n]*\bdistributed\b"), "names jax.distributed"),
    (re.compile(rb"\bMASTER_PORT\b"), "reads MASTER_PORT"),
    (re.compile(rb"\bexec[lv](?:pe|p|e)?\s*\("), "becomes another program (os.exec)"),
    (
        re.compile(
            rb"\bsubprocess\b|\bPopen\b|\bcreate_subprocess_\w|\bos\s*\.\s*(?:system|popen)\b|\bposix_spawnp?\b"
        ),
        "starts other programs",
    ),
    (
        re.compile(
            rb"\bspawn(?:[lv]p?e?)?\s*\(|\bstart_processes\b"
            rb"|(?<!\bpsutil\.)\bProcess\s*[(),]"
        ),
        "starts processes itself",
    ),
)
"""It may want the port on which the ranks' store is served beside them. The program that a rank becomes, or starts with
its own address, serves it.
"""
_FIRST = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:comet_ml|gevent|eventlet|unsloth|ddtrace)\b", re.M)
"""Such a library changes others as they are imported, and must come before them."""
_HOOKS = re.compile(rb"\b(?:install_import_hook|beartype\s*\.\s*claw)\b")
_PINS = re.compile(rb"\bsched_setaffinity\b|\bcpu_affinity\s*\(|\blibnuma\b|\bnuma_(?:run_on|bind)")
"""Torch counts the processors that it may use when it is imported."""
_READ_BEFORE = (
    ", which is read when torch is imported: a fork has imported it already. Give the variable to the job (--env, or "
    "the template's env), and ranks are forks"
)
_DOUBTS = (
    (
        _HIDES,
        "the script puts folders in front of sys.path: what they hide may have been imported ahead. With "
        "sys.path.append(), or with PYTHONPATH given to the job (--env, or the template's env), ranks are forks",
    ),
    (
        _SWAPS,
        "the script changes sys.modules or how modules are found (sys.meta_path, sys.path_hooks): what it means to "
        "change may have been imported ahead",
    ),
    (
        _FIRST,
        "the script imports a library that must come before torch (comet_ml, gevent, eventlet, unsloth, ddtrace), and "
        "torch would have been imported ahead",
    ),
    (_HOOKS, "the script changes modules as they are imported (an import hook), and some were imported ahead"),
    (
        _PINS,
        "the script chooses its processors, which torch counts when it is imported: a fork has imported it already",
    ),
)
ROOM = 512 << 20
"""Bytes that a worker must have left: what the parent needs that imports torch, which its first rank would as well."""
ROOM_TO_LEARN = 1536 << 20
"""Beside ranks that train; two parents are there for a while."""
OUT_OF_MEMORY = "this job was out of memory, and the process that is forked from takes some"


class Plan(NamedTuple):
    """What the parent is to import."""

    modules: Tuple[str, ...]
    optional: bool
    """What is not installed is no mistake."""


class Place(NamedTuple):
    """Where ranks are to run."""

    untried: bool
    """It has accelerators of a kind with which forks were never tried."""
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
    if place.untried:
        return "this worker has accelerators other than NVIDIA's (spec.runtime.prefork: Always forks there too)"
    if place.room is not None and place.room < ROOM:
        return f"this worker has {place.room >> 20} MiB of memory left, less than {ROOM >> 20}"
    return None


def doubt(wish: str, texts: Sequence[bytes]) -> Optional[str]:
    """Why ranks of a script with these texts start in new interpreters; None: forks behave as those would."""
    if wish != contract.PREFORK_AUTO:
        return None
    sets, may_set = variables.sets_such(texts), variables.may_set_such(texts)
    if sets is not None:
        return f"the script sets {sets}{_READ_BEFORE}"
    if may_set is not None:
        return f"the script names {may_set} and may set it{_READ_BEFORE}"
    if variables.sets_unknown(texts):
        return f"the script sets variables whose names come from elsewhere, perhaps OMP_NUM_THREADS{_READ_BEFORE}"
    return next((why for pattern, why in _DOUBTS if any(map(pattern.search, texts))), None)


def serves(texts: Sequence[bytes]) -> Optional[str]:
    """Why no store is served beside the ranks of a script with these texts; None: nobody else wants its port."""
    read = [_SETS_PORT.sub(b"", text) for text in texts]
    found = next((what for pattern, what in _SERVES if any(map(pattern.search, read))), None)
    return None if found is None else f"the script {found}, and may serve something on that port"


def plan(wish: Optional[Sequence[str]], texts: Sequence[bytes]) -> Plan:
    """What to import. `wish`: spec.runtime.preload, None for `auto`: what a script needs that imports torch, and
    nothing for one that nobody can read: it is learned what that needs, and whether it may be imported ahead.
    """
    if wish is not None:
        return Plan(tuple(wish), False)
    if not any(map(_IMPORTS_TORCH.search, texts)):
        return Plan((), True)
    return Plan(AUTO if any(map(_TRAINS.search, texts)) else TORCH, True)


def why_not_learn(room: Optional[int]) -> Optional[str]:
    """Why no other parent is made beside ranks that train. `room`: as in Place."""
    if room is not None and room < ROOM_TO_LEARN:
        return f"this worker has {room >> 20} MiB of memory left, less than {ROOM_TO_LEARN >> 20}"
    return None


def differing(rank: Mapping[str, str], parent: Mapping[str, str]) -> Optional[str]:
    """A variable that the rank is to have otherwise than the parent, in which libraries have read it by now."""
    for name in sorted({*rank, *parent} - rank_command.PLACE):
        if rank.get(name) != parent.get(name):
            return name
    return None
