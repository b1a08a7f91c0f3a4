"""`tj stop` of a cluster's job: `tj cancel`, under the name that jobs of this machine have for it."""

from __future__ import annotations

import argparse

from trainjob.cli.cluster import control
from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE


def stop(args: argparse.Namespace) -> int:
    """Cancel it."""
    if args.name is None:
        raise CommandError("say which job", next_step="`tj list --cluster` shows them", code=CLI_USAGE)
    return control.cancel(args)
