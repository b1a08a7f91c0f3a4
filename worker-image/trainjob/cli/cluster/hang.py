"""`tj hang` of a cluster's job: which ranks hang, or did."""

from __future__ import annotations

import argparse
import json

from trainjob.cli.cluster import connect
from trainjob.screen import hanging
from trainjob_api.contract import CLI_OK


def hang(args: argparse.Namespace) -> int:
    """Print the newest verdict."""
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
    if args.output == "json":
        print(json.dumps(hanging.as_json(job.status)))
        return CLI_OK
    print(*hanging.lines(args.name, job.status), sep="\n")
    return CLI_OK
