"""Reads a container's command line: is it Python running one script or module, and which?

Called by `defaults.py` (how many ranks a pod has) and meant for the agent too (a rank of such a command is started
through the session library, anything else is spawned as it stands). Standard library only, Python 3.9. Touches no file.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence

_INTERPRETER = re.compile(r"python(3(\.\d+)?t?)?")

MPI_LAUNCHERS = frozenset({"mpirun", "mpiexec", "orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi"})
"""Programs that start the processes of all pods: they run in one of them."""

LAUNCHERS = MPI_LAUNCHERS | {
    "torchrun",
    "torchrun-script",
    "accelerate",
    "accelerate-launch",
    "deepspeed",
    "horovodrun",
}
"""Programs that start the processes of a pod themselves."""

LAUNCHER_MODULES = frozenset(
    {
        "accelerate.commands.accelerate_cli",
        "accelerate.commands.launch",
        "deepspeed",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
        "torch.distributed.launch",
        "torch.distributed.launcher",
        "torch.distributed.run",
    }
)
"""The same, as `python -m`."""

_SINGLE_FLAGS = "bBdEiIOPqRsStuvx"
"""Python's short options without an argument; others with one: -W -X; -c and -m end the options."""


class PythonCommand(NamedTuple):
    """`python [flags] script arguments` or `python [flags] -m module arguments`, taken apart."""

    interpreter: str
    flags: List[str]
    """Options for the interpreter itself, in their order."""
    is_module: bool
    target: str
    """Path of the script, or name of the module."""
    arguments: List[str]


def parse_python(command: Sequence[str]) -> Optional[PythonCommand]:
    """The parts of a command that runs one script or module with Python; None for anything else (launchers
    included).
    """
    if not command or _INTERPRETER.fullmatch(command[0].rsplit("/", 1)[-1]) is None:
        return None
    flags: List[str] = []
    words = list(command[1:])
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            if word != "--check-hash-based-pycs" or not words:
                return None
            flags += [word, words.pop(0)]
        elif word.startswith("-"):
            found = _short_options(word, words, flags)
            if found is not _MORE:
                return None if found is None else PythonCommand(command[0], flags, True, found, words)
        else:
            return (
                None
                if not word or word.rsplit("/", 1)[-1] in LAUNCHERS
                else PythonCommand(command[0], flags, False, word, words)
            )
    return None


def launcher_of(command: Sequence[str]) -> Optional[str]:
    """What of a command starts the processes of a pod itself, as one would name it: `torchrun`, `python -m
    torch.distributed.run`; None for anything else.
    """
    words = [word.rsplit("/", 1)[-1] for word in command]
    if not words:
        return None
    if _INTERPRETER.fullmatch(words[0]) is None:
        return words[0] if words[0] in LAUNCHERS else None
    for at, word in enumerate(words[1:], start=1):
        if word == "-m" and at + 1 < len(words):
            return f"python -m {words[at + 1]}" if words[at + 1] in LAUNCHER_MODULES | LAUNCHERS else None
        if not word.startswith("-"):
            return word if word in LAUNCHERS else None
    return None


def is_mpi(command: Sequence[str]) -> bool:
    """Whether it is `mpirun ...` itself. In a shell's command line it is not looked for."""
    return bool(command) and command[0].rsplit("/", 1)[-1] in MPI_LAUNCHERS


def ignores_environment(flags: Sequence[str]) -> Optional[str]:
    """The option among an interpreter's that makes it ignore PYTHONPATH: -I or -E."""
    for flag in flags:
        if flag.startswith("--") or not flag.startswith("-"):
            continue
        for letter in flag[1:]:
            if letter in "WX":  # the rest is their argument
                break
            if letter in "IE":
                return f"-{letter}"
    return None


_MORE = "\0"
"""`_short_options`: only flags so far, look at the next word."""


def _short_options(word: str, words: List[str], flags: List[str]) -> Optional[str]:
    """Read one `-xyz`. Returns the module of -m, _MORE, or None when it is no plain command; takes arguments from
    `words`.
    """
    for at, letter in enumerate(word[1:], start=1):
        if letter in _SINGLE_FLAGS:
            continue
        rest = word[at + 1 :]
        argument = rest or (words.pop(0) if words else "")
        if not argument:
            return None
        if letter in "WX":
            flags += [word] if rest else [word, argument]
            return _MORE
        if letter == "m" and argument not in LAUNCHER_MODULES and argument not in LAUNCHERS:
            if at > 1:
                flags.append(word[:at])
            return argument
        return None
    if len(word) < 2:
        return None
    flags.append(word)
    return _MORE
