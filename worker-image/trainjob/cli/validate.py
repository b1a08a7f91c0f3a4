"""`tj validate`: check the TrainJobs of a manifest without running them."""

from __future__ import annotations

import argparse

from trainjob.cli import manifest
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api import defaults, pod_schema
from trainjob_api.contract import CLI_OK, CLI_USAGE
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import InvalidTrainJob, parse_trainjob


def validate(args: argparse.Namespace) -> int:
    """Print one line for each valid TrainJob; raise CommandError with everything that is wrong with the others."""
    if (args.file is None) == (args.manifest is None):
        raise CommandError(
            f"{args.manifest} or -f {args.file}: one manifest at a time"
            if args.file
            else "there is nothing to validate",
            next_step="tj validate -f FILE",
            code=CLI_USAGE,
        )
    file = args.file or args.manifest
    manifest.refuse_script(file, "run")
    faults = []
    for document in manifest.read(file):
        try:
            job = parse_trainjob(document)
        except InvalidTrainJob as error:
            faults.append(str(error))
        else:
            print(f"{file}: {summary(job)}")
            for doubt in pod_schema.pod_doubts(job.spec.template):
                print(f"{file}: look again at {doubt}")
    if faults:
        text = "\n".join(faults)
        raise CommandError(
            f"{file} is not valid\n{text}", next_step=f"correct the lines above, then `tj validate -f {file}`"
        )
    return CLI_OK


def summary(job: TrainJob) -> str:
    """What the manifest asks for, in one line."""
    spec = job.spec
    processes, most = defaults.processes_per_worker(spec), spec.failure_policy.max_failures
    return "; ".join(
        [
            f"TrainJob {job.metadata.name} is valid",
            wording.workers(defaults.sizes(spec), processes),
            f"checkpoints in {spec.checkpoint.storage}"
            if spec.checkpoint.storage
            else "no storage: checkpoints survive processes, not pods",
            "restarts without limit" if most < 0 else f"up to {wording.count(most, 'restart')}",
        ]
    )
