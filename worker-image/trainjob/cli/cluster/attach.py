"""`tj attach` of a cluster's job: its state and its ranks' lines until it ends, as `tj run` shows a local one."""

from __future__ import annotations

import argparse

from trainjob.cli.cluster import connect, watch
from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import ApiError
from trainjob.launch.cluster.follow import Wanted
from trainjob.screen import display as displays

TAIL = 100
"""Lines of each pod from before: a job may have trained for weeks. `tj logs` has them all."""


def attach(args: argparse.Namespace) -> int:
    """Show it until it ends; the job's exit code."""
    place, display = connect.connect(args), displays.choose(plain=args.plain)
    lines = _may_read_pods(place, args.name)
    if not lines:
        display.note(f"you may not list pods in {place.namespace}: the ranks' lines are not shown")
    outcome = watch.watch(place, Wanted(namespace=place.namespace, name=args.name, logs=lines, tail=TAIL), display)
    shown = None if outcome.job is None else displays.has_shown(display, outcome.job)
    return watch.conclude(place, args.name, outcome, shown=shown)


def _may_read_pods(place: connect.Place, name: str) -> bool:
    with connect.refusals():
        try:
            jobs_api.pods(place.api, place.namespace, name)
        except ApiError as error:
            if error.status == 403:
                return False
            raise
    return True
