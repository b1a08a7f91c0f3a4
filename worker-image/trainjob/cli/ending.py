"""What `tj run` says at the end: how the job ended, what is stored, the command that goes on from there; and its exit
code.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from trainjob.launch.outcome import ask_storage, last_good
from trainjob.screen import changes, failure, streams, wording
from trainjob.screen.asked import Asker
from trainjob_api import contract, defaults
from trainjob_api.contract import CLI_INTERRUPTED, CLI_JOB_FAILED, CLI_OK

if TYPE_CHECKING:
    from trainjob.checkpoint.reading.runs import Origin
    from trainjob.launch.local.backend import LocalOutcome
    from trainjob_api.v1alpha1 import TrainJob


def asker(args: argparse.Namespace) -> Asker:
    """In whose words the job speaks."""
    return Asker.MANIFEST if args.file else Asker.SHELL


def retry(args: argparse.Namespace, job: TrainJob) -> failure.Retry:
    """How to run this again so that it resumes where it stopped."""
    words = [
        "tj",
        "run",
        *(["-f", args.file, "--local"] if args.file else [*(["-m"] if args.module else []), args.script]),
    ]
    words += _options(args, "workers", "processes_per_worker", "gpus")
    words += ["--name", job.metadata.name]
    words += _options(
        args,
        "storage",
        "resume_from",
        "keep",
        "on_upload_failure",
        "max_failures",
        "hang",
        "hang_after",
        "prefork",
        "spare_workers",
    )
    words += [] if args.preload is None else ["--preload", ",".join(args.preload)]
    words += [word for tracker in args.track for word in ("--track", tracker)]
    words += ["--in-process"] if args.in_process else []
    words += [] if args.strict is None else ["--strict" if args.strict else "--no-strict"]
    for name, value in args.env:
        words += ["--env", f"{name}={value}"]
    words += ["--", *args.script_args] if args.script_args else []
    return failure.Retry(
        command=shlex.join(words),
        script=f"-m {args.script}" if args.module else args.script or args.file,
        asker=asker(args),
        storage=defaults.job_storage(job) or "the storage path",
        name=job.metadata.name,
    )


def _options(args: argparse.Namespace, *names: str) -> list[str]:
    """Those that were given, as one types them."""
    given = [(name, getattr(args, name)) for name in names]
    return [word for name, value in given if value is not None for word in (f"--{name.replace('_', '-')}", str(value))]


def conclude(
    outcome: LocalOutcome, again: failure.Retry, seconds: float, *, shown: int | None = None, budget: bool = True
) -> int:
    """Say how it ended, on standard error, and return the exit code (`shown` and `budget`: as for `explain`)."""
    job, status = outcome.job, outcome.job.status
    if status.holds("Complete"):
        lines, code = changes.completed(job, seconds), CLI_OK
    elif status.holds("Failed"):
        # Workers store what they hold after the last word that the status has.
        stored = next_start(str(outcome.storage))[0] if outcome.storage is not None else None
        id_ = None if stored is None else str(stored.manifest.id)
        lines, code = failure.explain(job, again, id_, shown=shown, budget=budget), CLI_JOB_FAILED
    else:
        lines, code = _stopped(outcome, again), CLI_INTERRUPTED
    lines += last_good.lines(job, outcome.storage, again.command)
    streams.say(*lines)
    return code


def _stopped(outcome: LocalOutcome, again: failure.Retry) -> list[str]:
    name, status = outcome.job.metadata.name, outcome.job.status
    stored, trouble = next_start(outcome.storage) if outcome.storage else (None, "")
    latest = str(stored.manifest.id) if stored else status.checkpoint.latest.id if status.checkpoint.latest else None
    run = status.attempt.run if status.attempt else None
    own = status.checkpoint.latest is not None or (
        stored is not None and not stored.earlier and stored.manifest.id.run == run
    )
    if trouble:
        saved = (
            f"checkpoint {latest} is saved, perhaps a newer one"
            if latest
            else "whether something was saved is not known"
        )
        saved += f": the storage did not say in {wording.duration(ask_storage.ASK_S)} ({trouble})"
    elif latest:
        saved = f"checkpoint {latest} is saved" if own else wording.from_before(latest)
    else:
        saved = "nothing was saved"
    effect = "resumes from it" if latest else "resumes from what is there" if trouble else "starts again"
    if changes.unstored(status) is None:
        return [f"{name} was stopped; {saved}", f"next: `{again.command}` {effect}"]
    return [
        f"{name} was stopped; {saved}. The last checkpoints could not be stored: the warning above says why",
        failure.next_steps(contract.REASON_STORAGE, None, again)[0],
        f"      then `{again.command}` {effect}",
    ]


def next_start(storage: str) -> tuple[Origin | None, str]:
    """(what the next run resumes from, what kept it from being told): storage counts, as the object's status is always
    a moment behind it.
    """
    from trainjob.checkpoint.choice import catalogue

    return ask_storage.ask(storage, catalogue.next_start)
