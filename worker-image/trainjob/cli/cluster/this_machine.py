"""Commands for jobs of a cluster, given the name of a job of this machine: what it has instead."""

from __future__ import annotations

import argparse

from trainjob.cli import jobs_parser
from trainjob.cli.errors import CommandError
from trainjob.cli.local import listing
from trainjob.launch.cluster.api import configured
from trainjob.launch.local.registry import records
from trainjob.launch.local.registry.records import Record
from trainjob.launch.outcome import last_good
from trainjob_api.contract import CLI_NO_ACCESS


def refuse(args: argparse.Namespace, verb: str) -> None:
    """Raises CommandError if no cluster can be meant, and a job of this machine has that name."""
    if jobs_parser.means_cluster(args) or configured():
        return
    here = next((record for record in records.find_all()[0] if record.name == args.name), None)
    if here is not None:
        raise CommandError(
            f"there is no kubeconfig, and {args.name} is a job of this machine",
            next_step=_instead(args, verb, here),
            code=CLI_NO_ACCESS,
        )


def _instead(args: argparse.Namespace, verb: str, here: Record) -> str:
    """What does it for a job of this machine."""
    stop, started = f"`tj stop {args.name}`", listing.again(here)
    if here.state == "Complete" and verb in ("suspend", "resume", "restart"):
        more = last_good.resuming(started, here.name) or f"{started} --resume-from {here.name}"
        return f"it has completed; `{more}` trains on from its newest checkpoint, if the script has more to do"
    if verb == "scale":
        return f"{stop}, then `{started}` with --workers {args.workers}"
    return {
        "suspend": f"{stop} ends it; `{started}` resumes from what it saved",
        "resume": f"`{started}` resumes from what it saved",
        "restart": f"{stop}, then `{started}`",
        "cancel": f"{stop} ends it and keeps what it saved",
        "wait": f"`tj attach {args.name}` shows it to its end, and its exit code says how it went",
        "events": f"`tj status {args.name}` shows its attempts and what ended them, `tj logs {args.name}` its lines",
        "delete": f"`tj rm {args.name}` removes it with what it stored, {stop} ends one that runs",
    }[verb]
