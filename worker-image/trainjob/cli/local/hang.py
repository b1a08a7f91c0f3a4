"""`tj hang` of a job of this machine: which ranks hang, or did, and which processes its ranks are now."""

from __future__ import annotations

import argparse
import json
import time

from trainjob.cli.local import find, rank_processes
from trainjob.launch.local.registry import records
from trainjob.screen import hanging
from trainjob_api.contract import CLI_OK
from trainjob_api.v1alpha1 import TrainJobStatus


def hang(args: argparse.Namespace) -> int:
    """Print the newest verdict."""
    record = find.find(args)
    job = find.job_of(record)
    status = TrainJobStatus() if job is None else job.status
    there = rank_processes.of(record, job) if job is not None and record.state == records.RUNNING else []
    if args.output == "json":
        print(json.dumps({**hanging.as_json(status), "ranks": [each.as_json for each in there]}))
        return CLI_OK
    pids = {each.rank: each.pid for each in there if each.pid is not None}
    print("\n".join([*hanging.lines(record.name, status, time.time()), *hanging.processes(pids)]))
    return CLI_OK
