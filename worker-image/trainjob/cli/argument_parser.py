"""The parser of `tj` and of each command, and the options that several commands have in the same words. argparse and
nothing else.
"""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from trainjob.cli import slips
from trainjob.cli.argument_types import assignment, at_least
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.screen.wording import nearest
from trainjob_api.contract import CLI_USAGE, ENV_VERBOSE


class Formatter(argparse.HelpFormatter):
    """Prose is wrapped to the terminal; a paragraph with an indented line in it (a list, an example) stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            "\n".join(indent + line for line in each.splitlines())
            if any(line.startswith(" ") for line in each.splitlines())
            else super(Formatter, self)._fill_text(each, width, indent)
            for each in paragraphs
        )


class Parser(argparse.ArgumentParser):
    """argparse whose errors say what to type next and leave printing and exit codes to `main`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **given})

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        next_step = f"`{self.prog} --help` shows the options"
        if "required:" in message and message.split()[-1] in ("NAME", "JOB"):
            next_step += ", `tj list` shows this machine's jobs"
        if "required:" in message and message.endswith("--output-dir"):
            next_step = f"{AGAIN} with `-o DIR` behind it: the folder that the files go to, new or empty"
        raise CommandError(message, next_step=next_step, code=CLI_USAGE)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A command that does not exist, with the nearest one instead of the whole list."""
        if not isinstance(action, argparse._SubParsersAction) or value in (action.choices or ()):
            super()._check_value(action, value)
            return
        others = slips.COMMANDS.get(self.prog, {})
        near = nearest(str(value), sorted(action.choices or ()), 2)
        # Another tool's word, misspelt too, where none of ours is near.
        meant = next(iter(get_close_matches(str(value), others, 1, cutoff=0.75)), None)
        instead = others.get(str(meant))
        if instead and (meant == value or not near) and (instead in (action.choices or ()) or instead.startswith("-")):
            near = [instead]
        guess = " or ".join(f"`{self.prog} {each}`" for each in near)
        raise CommandError(
            f"there is no command `{self.prog} {value}`" + (f"; did you mean {guess}?" if guess else ""),
            next_step=f"`{self.prog} --help` shows the commands",
            code=CLI_USAGE,
        )


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]


def script(parser: Parser) -> None:
    """SCRIPT: what every rank runs."""
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="Python script that every rank runs; relative to this directory"
    )


def manifest_file(group: argparse._ActionsContainer) -> None:
    """-f: a manifest instead of a script."""
    group.add_argument(
        "-f", "--file", metavar="FILE", help="take the job from a TrainJob manifest (- reads standard input)"
    )


def module(group: argparse._ActionsContainer) -> None:
    """-m: a module instead of a script."""
    group.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m")


def tracking(group: argparse._ActionsContainer) -> None:
    """--track."""
    group.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="TRACKER",
        help="give each report to an experiment tracker, beside the training: csv, tensorboard (=FOLDER), mlflow "
        "(=URI) or wandb (=PROJECT); may be given several times",
    )


def environment(group: argparse._ActionsContainer) -> None:
    """What ranks find in their environment: --env, and --verbose, which is a variable of it."""
    group.add_argument(
        "--env",
        metavar="K=V",
        type=assignment,
        action="append",
        default=[],
        help="set an environment variable of the ranks; may be given again",
    )
    group.add_argument(
        "--verbose",
        dest="env",
        action="append_const",
        const=(ENV_VERBOSE, "1"),
        help="show everything that ranks print, also tracebacks of ranks that only lost another one, and repeated ones",
    )


def checkpoint_rules(group: argparse._ArgumentGroup) -> None:
    """What `run` and `submit` say about a job's checkpoints. Values that a TrainJob's own validation judges are
    taken as they are.
    """
    group.add_argument(
        "--keep", metavar="N", type=at_least(1), help="checkpoints to keep; the newest always stays (default: all)"
    )
    group.add_argument(
        "--strict",
        action=argparse.BooleanOptionalAction,
        help="report() fails when two ranks give different bytes under one file name (default: a warning, and the "
        "lowest rank's file counts)",
    )
    group.add_argument(
        "--on-upload-failure",
        metavar="WHAT",
        help="when a checkpoint cannot be stored: Continue (training continues, with a warning) or Fail (report() "
        "raises on every rank) (default: Continue)",
    )


def restart_rules(group: argparse._ArgumentGroup, *names: str) -> None:
    """What `run` and `submit` say about how ranks are started, and started again: how often has the names that are
    given. Values are judged as those of `checkpoint_rules`.
    """
    group.add_argument(
        *names,
        dest="max_failures",
        metavar="N",
        type=at_least(-1),
        help="how many failures a restart may answer; -1: no limit (default: 3)",
    )
    group.add_argument(
        "--hang",
        metavar="WHAT",
        help="when the job hangs: Report (say which ranks to look at), Restart (also end the attempt, as a failure) or "
        "Off (default: Report)",
    )
    group.add_argument(
        "--hang-after",
        metavar="SECONDS",
        type=at_least(1),
        help="how long without a step is a hang (default: learned from the job's pace, at least five minutes)",
    )
    group.add_argument(
        "--prefork",
        metavar="WHEN",
        help="start ranks as forks of a process that has imported torch already: auto (on CPUs and NVIDIA GPUs), "
        "Always or Never (default: auto)",
    )
    group.add_argument(
        "--preload",
        metavar="MODULES",
        type=module_names,
        help="what that process imports, such as torch,transformers; an empty string: nothing (default: torch, if "
        "the script imports it)",
    )
    group.add_argument(
        "--spare-workers",
        "--spares",
        metavar="N",
        type=at_least(0),
        help="workers that are up beside those that train, and take the place of one that is lost at once; they hold "
        "what a worker asks for (default: 0)",
    )


def module_names(text: str) -> list[str]:
    """`a,b` as a list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def cluster_access(group: argparse._ArgumentGroup) -> None:
    """Which cluster a command speaks to."""
    group.add_argument(
        "--cluster", action="store_true", help="use the cluster and namespace of the kubeconfig's current context"
    )
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig (default: $KUBECONFIG, else ~/.kube/config, else the pod's own service account)",
    )


def cluster_place(parser: Parser) -> None:
    """Which namespace of which cluster a command is about."""
    group = parser.add_argument_group("which cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: the context's)")
    cluster_access(group)


def output(parser: Parser, *forms: str) -> None:
    """`-o json` and the like."""
    parser.add_argument("-o", "--output", choices=forms, metavar="FORM", help=f"{' | '.join(forms)} instead of text")
