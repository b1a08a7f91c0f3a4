"""What `tj run` says of runs before: one of this name was of another script, one of this command was left."""

from __future__ import annotations

import argparse
import os
import shlex

from trainjob.cli.local import find, listing
from trainjob.launch.local.registry import records
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob


def of_another_script(args: argparse.Namespace, job: TrainJob) -> str:
    """The line for a name by which another script resumes; empty where that cannot be."""
    folder = defaults.job_storage(job)
    if not args.name or args.fresh or args.resume_from or args.file or folder is None:
        return ""
    before = next((each for each in records.find_all()[0] if each.folder == folder), None)
    if before is None or before.state not in find.GOES_ON:
        return ""
    words = shlex.split(listing.command(before))
    own = words[2 : words.index("--")] if "--" in words else words[2:]
    script = next((word for word in own if word.endswith(".py")), None)
    if words[:2] != ["tj", "run"] or script is None or os.path.basename(script) == os.path.basename(args.script):
        return ""
    return (
        f"warning: the run of this name before was of {script} and did not complete: {args.script} resumes from what "
        "that saved. --fresh starts from the beginning, another --name keeps both"
    )


def of_one_left(args: argparse.Namespace) -> str:
    """The line for a job without a name that the same command began here and that did not come to its end; empty where
    there is nothing to resume.
    """
    if args.name or args.fresh or args.resume_from or args.file:
        return ""
    here = (["tj", *args.words], os.getcwd())
    before = next((each for each in records.find_all()[0] if (listing.typed(each), each.cwd) == here), None)
    if before is None or before.state not in (records.KILLED, records.STOPPED):
        return ""
    start = find.next_start(before, find.job_of(before))
    if start is None:
        return ""
    return (
        f"the run of this command before was {before.state.lower()} at checkpoint {start.id}: "
        f"`{listing.again(before)}` resumes it"
    )
