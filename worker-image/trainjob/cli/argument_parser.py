"""The parser of `tj` and of each command, and the options that several commands have in the same words. argparse and
nothing else.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from trainjob.cli.argument_types import at_least
from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE


class Parser(argparse.ArgumentParser):
    """argparse whose errors say what to type next and leave printing and exit codes to `main`."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage."""
        raise CommandError(message, next_step=f"`{self.prog} --help` shows the options", code=CLI_USAGE)


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]


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
        help="two ranks that give different bytes under one file name fail report() (default: the lowest rank's "
        "counts, with a warning)",
    )
    group.add_argument(
        "--on-upload-failure",
        metavar="WHAT",
        help="when a checkpoint cannot be stored: Continue (training goes on) or Fail (report() raises on every "
        "rank) (default: Continue)",
    )


def cluster_access(group: argparse._ArgumentGroup) -> None:
    """Which cluster a command speaks to."""
    group.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    group.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig (default: $KUBECONFIG, else ~/.kube/config, else the pod's own service account)",
    )


def output(parser: Parser, *forms: str) -> None:
    """`-o json` and the like."""
    parser.add_argument("-o", "--output", choices=forms, metavar="FORM", help=f"{' | '.join(forms)} instead of text")
