"""A line that names a program (`tj run torchrun --nproc_per_node 2 train.py`), and the line of ours that it means.

Called by `main` when words make no sense. Pure; standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from trainjob.cli import slips
from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE

_PROGRAM = re.compile(r"python[0-9.]*|torchrun|accelerate|bash|sh")
_SECOND = (["launch"], ["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"])
"""What may follow the program and is no script either."""
# fmt: off
_WITH_VALUE = (
    "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--master-addr", "--master-port", "--node-rank",
    "--local-addr", "--role", "--log-dir", "--tee", "--redirects", "--monitor-interval", "--start-method",
    "--config-file", "--mixed-precision", "--machine-rank", "--main-process-ip", "--main-process-port", "-t", "-r",
    "-W", "-X",
)
# fmt: on
"""Options of these programs that have no counterpart and take a value."""


class _Word(str):
    """A word of the command line; an equal one elsewhere in it is another object."""


def is_program(script: str) -> bool:
    """Whether this stands where the script should, and is what starts one."""
    return _PROGRAM.fullmatch(script) is not None


def refusal(
    command: str, program: str, words: Sequence[str], rest: Sequence[str], unknown: Callable[[list[str]], list[str]]
) -> CommandError:
    """What to type instead. `words`: from the command on, `rest`: what stood behind `--`; `unknown`: of the words of
    a line those that no option takes, as the same objects, or CommandError where the line is wrong.
    """
    line = _line(program, list(words), list(rest), unknown)
    return CommandError(
        f"{program} is no script: `tj {command}` starts Python on every rank by itself",
        next_step=f"leave {program} out: tj {shlex.join(line)}"
        if line
        else f"leave {program} and its options out; `tj {command} --help` shows ours",
        code=CLI_USAGE,
    )


def _line(
    program: str, words: list[str], rest: list[str], unknown: Callable[[list[str]], list[str]]
) -> list[str] | None:
    """The words of the line of ours; None: there is none that could be said for sure."""
    at = words.index(program)
    after = words[at + 1 :]
    for second in _SECOND:
        if after[: len(second)] == second:
            after = after[len(second) :]
    places = (place for place, word in enumerate(after) if word.endswith(".py") or after[:place][-1:] == ["-m"])
    script = next(places, len(after))
    ours = [*words[:at], *_translated(words[0], after[:script])]
    line: list[str] = [_Word(word) for word in [*ours, *after[script:]]]
    try:
        strange = {id(word) for word in unknown(line)}
    except CommandError:
        return None
    kept = [word for word in line if id(word) not in strange]
    of_the_script = [*(word for word in line[len(ours) :] if id(word) in strange), *rest]
    return [*kept, *(["--", *of_the_script] if of_the_script else ())]


def _translated(command: str, words: list[str]) -> list[str]:
    """A program's options, before the script: ours for them, and without those that have no counterpart."""
    table = slips.OPTIONS[command]
    nodes = any(slips.is_nodes(word.partition("=")[0]) for word in words)
    found: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in _WITH_VALUE:
            if not equals:
                next(left, None)
            continue
        ours = "--processes-per-worker" if nodes and slips.is_ranks(name) else table.get(name, name)
        found.append(f"{ours}{equals}{value}")
    return found
