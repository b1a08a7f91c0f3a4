"""What people type who know other tools, or who leave something out: the sentence that gets them on.

Read by `main`, `argument_parser` and `launchers` when words make no sense. Tables; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE

COMMANDS = {
    "tj": {
        "help": "--help",
        "version": "--version",
        "ls": "list",
        "ps": "list",
        "get": "list",
        "log": "logs",
        "kill": "stop",
        "describe": "status",
        "info": "status",
        "explain": "status",
        "remove": "rm",
        "start": "run",
        "train": "run",
        "launch": "run",
        "apply": "submit",
        "create": "submit",
    },
    "tj checkpoints": {
        "ls": "list",
        "get": "download",
        "pull": "download",
        "describe": "show",
        "info": "show",
        "check": "verify",
        "remove": "rm",
        "delete": "rm",
    },
    "tj model": {"download": "get", "pull": "get"},
}
"""Commands of other tools, and ours, by what stands before them."""

ACTIONS = {"checkpoints": ("list", "show", "verify", "download", "rm"), "model": ("get",)}
"""Of commands of two words, the one first that a job's name alone means: it changes nothing."""

_WORKERS = ("--nnodes", "--num-workers", "--num_workers", "--num-machines", "--num_machines", "--replicas", "--np")
_RANKS = ("--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes", "--nprocs", "--nproc")
_LAUNCH = {
    **dict.fromkeys(_WORKERS, "--workers"),
    "--max-restarts": "--max-failures",
    "--max_restarts": "--max-failures",
}
OPTIONS = {
    "run": {**_LAUNCH, "-n": "--workers", **dict.fromkeys(_RANKS, "--workers")},
    "submit": {**_LAUNCH, **dict.fromkeys(_RANKS, "--processes-per-worker")},
    "scale": dict.fromkeys(("--workers", "--replicas"), "the number by itself: `tj scale NAME 4`"),
    "checkpoints": {"--keep-best": "`tj rm {job} --keep-best`"},
}
"""Options of other tools, or of another command of ours, by our command; and ours. On this machine each rank is a
worker, on a cluster each pod."""

WORDS = {
    "list": "`tj list` shows all jobs and takes no name; one of them: `tj status {word}`",
    "model": "--best is the best by the job's own score; by another metric: --metric {word} --mode min (or max)",
}
"""By our command, what somebody means who gives a word too many."""

_CHECKPOINT = re.compile(r"\d+-\d+-\d+")

ON_A_CLUSTER = (
    "--image",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--pull-secret",
    "--node-selector",
    "--toleration",
)
"""What `tj submit` takes and `tj run` has no use for."""

OUTPUT = {"--json": "-o json"}
"""The same for each command that has -o."""


def completed(words: list[str]) -> list[str]:
    """`checkpoints NAME` as `checkpoints list NAME`, and `checkpoints NAME show` as `checkpoints show NAME`; what may
    be a slip in an action's name stays as it is.
    """
    actions = ACTIONS.get(words[0], ()) if len(words) > 1 else ()
    if not actions or words[1].startswith("-") or words[1] in actions:
        return words
    if len(words) > 2 and words[2] in actions:
        return [words[0], words[2], words[1], *words[3:]]
    known = [*actions, *COMMANDS[f"tj {words[0]}"]]
    return words if get_close_matches(words[1], known, 1, cutoff=0.7) else [words[0], actions[0], *words[1:]]


def is_nodes(option: str) -> bool:
    """Whether another tool's option says on how many machines."""
    return option in _WORKERS


def is_ranks(option: str) -> bool:
    """Whether it says how many ranks there are on each."""
    return option in _RANKS


def unknown(
    command: str | None,
    options: Sequence[str],
    script: str | None,
    words: Sequence[str],
    job: str = "JOB",
    into: str = "DIR",
) -> CommandError:
    """For words that no option takes. A misspelt option is told from one that was meant for the script. `job`: which
    the command is about; `into`: where its files go.
    """
    named = f"tj {command}" if command else "tj"
    of_the_script = "; arguments for the script go after --" if script is not None else ""
    for word in words:
        name = word.partition("=")[0]
        if command == "run" and name in ON_A_CLUSTER:
            return CommandError(
                f"{name} is for jobs of a cluster: `tj run` starts processes of this machine, in its Python",
                next_step=f"on a cluster: tj submit SCRIPT --image IMAGE; here: leave {name} out",
                code=CLI_USAGE,
            )
        if not name.startswith("-"):
            continue
        near = get_close_matches(name, options, 1, cutoff=0.75) if name.startswith("--") else []
        written = OUTPUT.get(name) if "--output" in options else None
        ours = written or OPTIONS.get(command or "", {}).get(name) or (near[0] if near else None)
        if ours is not None:
            return CommandError(
                f"there is no option {name}; did you mean {ours.format(job=job)}?",
                next_step=f"`{named} --help` shows the options{of_the_script}",
                code=CLI_USAGE,
            )
    said = " ".join(words)
    next_step = f"`{named} --help` shows the options"
    if command in WORDS and not words[0].startswith("-"):
        next_step = WORDS[command].format(word=words[0])
    if command == "model" and _CHECKPOINT.fullmatch(words[0]):
        next_step = f"`tj checkpoints download {job} {words[0]} -o {into}` brings that checkpoint"
    if script is not None:
        next_step = f"arguments for the script go after --: {named} {script} ... -- {said}"
    return CommandError(f"unknown: {said}", next_step=next_step, code=CLI_USAGE)
