"""`tj logs`: the lines of a job's ranks, as they are now or as they come."""

from __future__ import annotations

import argparse
import sys

from trainjob.cli import no_such_rank
from trainjob.cli.cluster import connect, watch
from trainjob.cli.errors import CommandError
from trainjob.launch.cluster import job_log, jobs_api
from trainjob.launch.cluster.follow import Wanted
from trainjob.launch.outcome import log_choice as ranks
from trainjob_api.contract import CLI_OK, CLI_USAGE


def logs(args: argparse.Namespace) -> int:
    """Print them. With -f the job's exit code."""
    if args.follow and args.previous:
        raise CommandError(
            "--previous is over, there is nothing to follow",
            next_step="leave one of -f and --previous out",
            code=CLI_USAGE,
        )
    place = connect.connect(args)
    with connect.refusals():
        selection = ranks.parse(args.rank) if args.rank else None
    if args.follow:
        wanted = Wanted(namespace=place.namespace, name=args.name, logs=True, selection=selection, tail=args.tail)
        return watch.conclude(place, args.name, watch.watch(place, wanted, watch.LogDisplay(sys.stdout, sys.stderr)))
    return _now(args, place, selection)


def _now(args: argparse.Namespace, place: connect.Place, selection: ranks.Selection | None) -> int:
    with connect.refusals():
        job = jobs_api.read(jobs_api.get(place.api, place.namespace, args.name))
        pods = jobs_api.pods(place.api, place.namespace, args.name)
        shown = selection or ranks.usual(job)
        no_such_rank.check(args.name, args.rank, shown, ranks.world_size(job))
        count = 0
        for line in job_log.lines(place.api, job, pods, shown, tail=args.tail, previous=args.previous):
            print(line)
            count += 1
    sys.stdout.flush()
    if not count:
        print(_nothing(args, job.status.finished, bool(pods)), file=sys.stderr)
    elif selection is None and shown.ranks is not None:
        print(f"tj  | rank 0 of {ranks.world_size(job)}; --rank all shows them all", file=sys.stderr)
    return CLI_OK


def _nothing(args: argparse.Namespace, finished: bool, pods: bool) -> str:
    if args.previous:
        return (
            f"no container of {args.name} was started again in its pod; `tj logs {args.name}` has the lines of "
            "all attempts"
        )
    if pods:
        return f"the ranks of {args.name} have written nothing yet; -f waits for it"
    return (
        f"the pods of {args.name} are gone, and their lines with them"
        if finished
        else f"{args.name} has no pods yet; -f waits for them"
    )
