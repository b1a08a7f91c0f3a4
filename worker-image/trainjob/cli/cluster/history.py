"""`tj history` of a cluster's job: why its attempts ended, what was lost, and where its time went."""

from __future__ import annotations

import argparse
import json
import time

from trainjob.cli.cluster import connect
from trainjob.screen import attempts, clock, table
from trainjob_api.contract import CLI_OK


def history(args: argparse.Namespace) -> int:
    """Print it."""
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
    if args.output == "json":
        for row in clock.as_json(job.status):
            print(json.dumps(row))
        return CLI_OK
    now = time.time()
    told = attempts.lines(job.status, now, width=table.width()) or [f"no attempt of {args.name} has begun"]
    more = clock.lines(job.status, now) if args.parts else clock.goodput(job.status, now)
    print(*told, *([""] if more else []), *more, sep="\n")
    return CLI_OK
