"""`tj stop` of a cluster's job: `tj cancel`, under the name that jobs of this machine have for it."""

from __future__ import annotations

import argparse

from trainjob.cli.cluster import control
from trainjob.cli.errors import CommandError, for_each
from trainjob_api.contract import CLI_USAGE


def stop(args: argparse.Namespace) -> int:
    """Cancel them, one after the other."""
    if not args.names:
        raise CommandError("say which job", next_step="`tj list --cluster` shows them", code=CLI_USAGE)
    return for_each(args.names, lambda name: control.cancel(argparse.Namespace(**{**vars(args), "name": name})))
