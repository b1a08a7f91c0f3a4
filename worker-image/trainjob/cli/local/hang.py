"""`tj hang` of a job of this machine: which ranks hang, or did."""

from __future__ import annotations

import argparse
import time

from trainjob.cli.local import find
from trainjob.screen import hanging
from trainjob_api.contract import CLI_OK
from trainjob_api.v1alpha1 import TrainJobStatus


def hang(args: argparse.Namespace) -> int:
    """Print the newest verdict."""
    record = find.find(args)
    job = find.job_of(record)
    status = TrainJobStatus() if job is None else job.status
    print(hanging.shown(record.name, status, args.output, time.time()))
    return CLI_OK
