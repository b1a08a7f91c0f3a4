"""What people type who know other tools, or who leave something out: the sentence that gets them on.

Read by `main` and `argument_parser` when words make no sense. Tables; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE

COMMANDS = {
    "help": "--help",
    "version": "--version",
    "ls": "list",
    "ps": "list",
    "get": "list",
    "log": "logs",
    "kill": "stop",
    "describe": "status",
    "info": "status",
    "explain": "history",
    "remove": "rm",
    "start": "run",
    "train": "run",
    "launch": "run",
    "apply": "submit",
    "create": "submit",
}
"""Commands of other tools, and ours."""

_WORKERS = dict.fromkeys(("-n", "--nnodes", "--num-workers", "--num_workers", "--replicas", "--np"), "--workers")
_RANKS = dict.fromkeys(("--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes"), "--workers")
_LAUNCH = {**_WORKERS, **_RANKS, "--max-restarts": "--max-failures", "--max_restarts": "--max-failures"}
OPTIONS = {
    "run": _LAUNCH,
    "submit": {name: ours for name, ours in _LAUNCH.items() if name != "-n"},
    "scale": dict.fromkeys(("--workers", "--replicas"), "the number by itself: `tj scale NAME 4`"),
}
"""Options of other tools by our command, and ours."""

_PROGRAM = re.compile(r"python[0-9.]*|torchrun|accelerate|bash|sh")


def unknown(command: str | None, options: Sequence[str], script: str | None, words: Sequence[str]) -> CommandError:
    """For words that no option takes. A misspelt option is told from one that was meant for the script."""
    named = f"tj {command}" if command else "tj"
    of_the_script = "; arguments for the script go after --" if script is not None else ""
    if script is not None and _PROGRAM.fullmatch(script):
        return CommandError(
            f"{script} is no script: `{named}` starts Python on every rank by itself",
            next_step=f"leave {script} out: {named} {' '.join(words)}",
            code=CLI_USAGE,
        )
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            continue
        near = get_close_matches(name, options, 1, cutoff=0.75) if name.startswith("--") else []
        ours = OPTIONS.get(command or "", {}).get(name) or (near[0] if near else None)
        if ours is not None:
            return CommandError(
                f"there is no option {name}; did you mean {ours}?",
                next_step=f"`{named} --help` shows the options{of_the_script}",
                code=CLI_USAGE,
            )
    said = " ".join(words)
    next_step = f"`{named} --help` shows the options"
    if script is not None:
        next_step = f"arguments for the script go after --: {named} {script} ... -- {said}"
    return CommandError(f"unknown: {said}", next_step=next_step, code=CLI_USAGE)
