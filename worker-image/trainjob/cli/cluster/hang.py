"""`tj hang` of a cluster's job: which ranks hang, or did."""

from __future__ import annotations

import argparse
import time

from trainjob.cli.cluster import connect
from trainjob.screen import hanging
from trainjob_api.contract import CLI_OK


def hang(args: argparse.Namespace) -> int:
    """Print the newest verdict."""
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
    print(hanging.shown(args.name, job.status, args.output, time.time(), place.flags))
    return CLI_OK
