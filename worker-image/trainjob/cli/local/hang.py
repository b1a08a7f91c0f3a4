"""`tj hang` of a job of this machine: which ranks hang, or did."""

from __future__ import annotations

import argparse
import json

from trainjob.cli.local import find
from trainjob.screen import hanging
from trainjob_api.contract import CLI_OK
from trainjob_api.v1alpha1 import TrainJobStatus


def hang(args: argparse.Namespace) -> int:
    """Print the newest verdict."""
    record = find.find(args)
    job = find.job_of(record)
    status = TrainJobStatus() if job is None else job.status
    if args.output == "json":
        print(json.dumps(hanging.as_json(status)))
        return CLI_OK
    print(*hanging.lines(record.name, status), sep="\n")
    return CLI_OK
