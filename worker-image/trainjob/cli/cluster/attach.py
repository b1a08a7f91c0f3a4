"""`tj attach` of a cluster's job: `tj status --watch`, under the name that jobs of this machine have for it."""

from __future__ import annotations

import argparse

from trainjob.cli.cluster import connect, status


def attach(args: argparse.Namespace) -> int:
    """Show it until it ends; the job's exit code."""
    return status.watched(connect.connect(args), args.name, plain=args.plain)
