"""`tj history` of a cluster's job: how its attempts began, part by part, and where its time went."""

from __future__ import annotations

import argparse
import json

from trainjob.cli.cluster import connect
from trainjob.screen import clock
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
    print(*(clock.lines(job.status) or [f"no attempt of {args.name} has begun"]), sep="\n")
    return CLI_OK
