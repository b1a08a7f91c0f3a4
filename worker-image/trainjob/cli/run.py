"""`tj run`: make a TrainJob of a script or a manifest, run it on this machine, show it, and end with the right code.

The job itself is driven by `trainjob.launch.local.backend`; what is decided here is only what to run and how to show
it. `ending` says how it ended.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from trainjob.cli import ending, manifest, overlay, resume
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.launch import job as jobs
from trainjob.launch.errors import LaunchError
from trainjob.screen import display as displays
from trainjob.screen import failure, own_words, streams, wording
from trainjob.screen.asked import Asker, shown_here
from trainjob.session import filesystems, large_imports
from trainjob_api import defaults
from trainjob_api.contract import CLI_OK, CLI_USAGE, ENV_VERBOSE
from trainjob_api.v1alpha1 import TrainJob

if TYPE_CHECKING:
    from trainjob.cli.tracking import Tracking
    from trainjob.launch.local.backend import LocalEvent, LocalOutcome

CORRECT = f"correct that, then {AGAIN}"
_MEANT = re.compile(r"; did you mean (\S+)\?$")


def run(args: argparse.Namespace) -> int:
    """Run the job to its end; 0, 10 or 130. Raises CommandError when it cannot be run."""
    started = time.monotonic()
    job, tracked = build(args), ""
    if args.track and (args.dry_run or args.detach):
        # Of what is refused the person at this terminal hears, not the log of a background job.
        from trainjob.cli.tracking import Tracking

        tracked = Tracking(args.track, job).places
    if args.dry_run:
        return _dry_run(args, job, tracked)
    if args.detach:
        return _detach(args, job)
    if args.in_process:
        return _in_process(args, job, started)
    # A third of a second of imports, which wrong usage does not have to wait for.
    with large_imports.quietly():
        from trainjob.cli.local import before
        from trainjob.cli.tracking import Tracking
        from trainjob.launch.local.backend import LocalOptions, run_job
        from trainjob.launch.local.interrupts import interrupts

    display = displays.choose(plain=args.plain, verbose=dict(args.env).get(ENV_VERBOSE) == "1")
    for note in filter(None, (renamed(args, job), before.of_another_script(args, job), before.of_one_left(args))):
        display.note(note)
    with interrupts(ends=True) as signals:  # one that comes after the job's end does not change how this ends
        signals.let_through()
        outcome: LocalOutcome | None = None
        try:
            options = LocalOptions(asker=ending.asker(args), uses_kept=True, keep_warm_s=args.keep_warm)
            tracking = Tracking(args.track, job)
            if tracking.places:
                display.note(f"reports go to {tracking.places}")
            with tracking.of_the_end():
                signals.held = True
                outcome = run_job(job, options=options, listener=Show(display, job, tracking))
                tracking.last(outcome.job)
                signals.forget()
                signals.let_through()  # the wait for trackers may be long
        except KeyboardInterrupt:
            if outcome is None:
                raise
        except LaunchError as error:
            raise CommandError(str(error), next_step=_way_out(error, args, job)) from None
        finally:
            signals.held = True
            display.close()
        assert outcome is not None
        shown = displays.has_shown(display, outcome.job)
        return ending.conclude(outcome, ending.retry(args, outcome.job), time.monotonic() - started, shown=shown)


def _way_out(error: LaunchError, args: argparse.Namespace, job: TrainJob) -> str:
    """What to type after a job that could not be started."""
    from trainjob.launch.local.gpus import ON_THE_CPU
    from trainjob.launch.local.lock import JobRunning

    name, text = job.metadata.name, str(error)
    if isinstance(error, JobRunning):
        return f"`tj status {name}` shows it, `tj stop {name}` stops it; then {AGAIN}, or with another --name"
    if (before := own_words.checkpoint_before(text)) is not None:
        return f"`{failure.resuming_from(shlex.join(['tj', *args.words]), before)}`"
    if ON_THE_CPU in text and args.file is None:
        return f"`{failure.with_value(shlex.join(['tj', *args.words]), '--gpus', '0')}` trains on the CPU"
    if "there are no credentials" in text:
        return f"`export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...` (or AWS_PROFILE), then {AGAIN}"
    if (meant := _MEANT.search(text)) is not None and args.script in args.words:
        top, dot, rest = args.script.partition(".") if args.module else ("", "", "")
        right = f"{meant[1]}{dot}{rest}" if top else os.path.join(os.path.dirname(args.script), meant[1])
        words = [right if word == args.script else word for word in args.words]
        return f"`{shlex.join(['tj', *words])}`"
    if text.startswith(("the script", "there is no module")):
        other = "name another module" if args.module else "name another script"
        return other if args.file is None else f"correct the command in {args.file}, then {AGAIN}"
    return CORRECT


def _dry_run(args: argparse.Namespace, job: TrainJob, tracked: str) -> int:
    """Everything that a run would check before it starts something, then the object."""
    import yaml

    from trainjob.launch.local import backend, checks

    try:
        job = checks.fitted(job, backend.base_environment())
        checks.check(job, backend.base_environment(), os.getcwd(), ending.asker(args), starts=False)
    except LaunchError as error:
        raise CommandError(str(error), next_step=_way_out(error, args, job)) from None
    document = {name: value for name, value in job.to_json().items() if name != "status"}
    print(yaml.safe_dump(document, sort_keys=False), end="")
    said = (renamed(args, job), f"nothing was started; {opening(job)}", tracked and f"reports would go to {tracked}")
    print(*filter(None, said), sep="\n", file=sys.stderr)
    return CLI_OK


def _detach(args: argparse.Namespace, job: TrainJob) -> int:
    """The same words again, with the name that this command would have made."""
    for hinders, said, next_step in (
        (args.in_process, "a process of its own", "leave --in-process out"),
        (args.file == "-", "a manifest that can be read again", "give -f a file"),
        (defaults.job_storage(job) is None, "storage, by which it is found again", "give --storage a folder"),
    ):
        if hinders:
            raise CommandError(f"--detach needs {said}", next_step=next_step, code=CLI_USAGE)
    from trainjob.cli.local import detach

    words = list(itertools.takewhile(lambda word: word != "--", args.words))
    words = [word for word in words if word != "--detach"]
    named = [] if args.name else ["--name", job.metadata.name]
    script_args = ["--", *args.script_args] if args.script_args else []
    return detach.detach(job, [*words, *named, *script_args])


def _in_process(args: argparse.Namespace, job: TrainJob, started: float) -> int:
    """The script as this process's `__main__`; Python has printed its traceback by then, so it is not said again."""
    from trainjob.launch.in_process import places, script
    from trainjob.launch.local.backend import LocalOutcome
    from trainjob.launch.local.interrupts import interrupts

    streams.say(places.opening(job, places.place(os.environ)))
    os.environ.update(args.env)
    command = [*(("-m",) if args.module else ()), args.script, *args.script_args]
    try:
        end = script.run(job, command, debug=args.pdb, asker=Asker.SHELL)
    except LaunchError as error:
        raise CommandError(str(error), next_step=_way_out(error, args, job)) from None
    if end is None:  # rank 0's process says how the job ended
        return CLI_OK
    outcome = LocalOutcome(job=end.job, storage=defaults.job_storage(end.job), interrupted=end.interrupted)
    with interrupts(ends=True):
        return ending.conclude(outcome, ending.retry(args, end.job), time.monotonic() - started, shown=1, budget=False)


def build(args: argparse.Namespace) -> TrainJob:
    """The TrainJob that the arguments ask for. Raises CommandError."""
    options = _options(args)
    return overlay.parse(overlay.overlay(_document(args), options), options, command="run", file=args.file)


def _document(args: argparse.Namespace) -> dict[str, Any]:
    _check(args)
    if args.file is not None:
        return manifest.read_one(args.file)
    command = (sys.executable, *(("-m",) if args.module else ()), args.script, *args.script_args)
    storage = args.storage or jobs.DEFAULT_STORAGE
    return jobs.from_script(jobs.ScriptJob(command=command, name=args.name, storage=storage)).to_json()


def _check(args: argparse.Namespace) -> None:
    manifest.script_or_file(
        args.script, args.file, verb="run", forms="tj run train.py --workers 2, or tj run -f FILE --local"
    )
    if args.file is not None and not args.local:
        raise CommandError(
            "`tj run` runs manifests on this machine, and only when told so",
            next_step=f"tj run -f {args.file} --local, or on a cluster: tj submit -f {args.file}",
            code=CLI_USAGE,
        )
    if filesystems.is_stored_elsewhere(args.storage or ""):
        raise CommandError(
            f"--storage {args.storage}: this version stores on paths and at s3://",
            next_step="give a folder, --storage ./checkpoints, or a bucket, --storage s3://bucket/folder",
            code=CLI_USAGE,
        )
    if args.in_process and (args.file or (args.workers or 1) * (args.processes_per_worker or 1) > 1):
        raise CommandError(
            "--in-process runs a script as one rank in this process",
            next_step="leave -f, --workers and --processes-per-worker out; several ranks that a debugger can reach: "
            "torchrun --nproc-per-node 2 -m trainjob.cli run --in-process train.py",
            code=CLI_USAGE,
        )
    if args.in_process and args.keep_warm is not None:
        raise CommandError(
            "--in-process starts no process that could be kept warm",
            next_step="leave --keep-warm out, or --in-process",
            code=CLI_USAGE,
        )
    if args.pdb and not args.in_process:
        raise CommandError(
            "--pdb needs the script in this process: a rank of its own has no terminal",
            next_step=f"tj run --in-process --pdb {args.script or 'train.py'}",
            code=CLI_USAGE,
        )
    if args.in_process and args.track:
        raise CommandError(
            "--track follows a job from outside of its ranks",
            next_step="leave --in-process out, or log in the script itself",
            code=CLI_USAGE,
        )
    if args.in_process and args.max_failures:
        raise CommandError(
            "--in-process starts nothing again: the loop runs in this process",
            next_step="leave --max-failures out, or --in-process",
            code=CLI_USAGE,
        )
    if args.in_process and args.spare_workers:
        raise CommandError(
            "--in-process has one rank, in this process: no worker can take its place",
            next_step="leave --spare-workers out, or --in-process",
            code=CLI_USAGE,
        )
    if args.file is not None and args.script_args:
        raise CommandError(
            "a manifest takes nothing after --",
            next_step=f"put the arguments into the container's command in {args.file}",
            code=CLI_USAGE,
        )


def _options(args: argparse.Namespace) -> overlay.Options:
    return overlay.Options(
        name=jobs.job_name(args.name) if args.name else None,
        workers=args.workers,
        processes_per_worker=args.processes_per_worker,
        storage=jobs.storage_root(args.storage) if args.storage else None,
        keep=args.keep,
        strict=args.strict,
        on_upload_failure=args.on_upload_failure,
        fresh=args.fresh,
        resume_from=resume.resolve(args.resume_from, args.name, args.storage) if args.resume_from else None,
        gpus=args.gpus,
        max_failures=args.max_failures,
        hang=args.hang,
        hang_after=args.hang_after,
        prefork=args.prefork,
        preload=args.preload,
        spare_workers=args.spare_workers,
        env=args.env,
    )


def renamed(args: argparse.Namespace, job: TrainJob) -> str:
    """The line for a name that a job cannot have as it was given; empty for others."""
    name = job.metadata.name
    return f"the job's name is {name} (made of {args.name!r})" if args.name and name != args.name else ""


def opening(job: TrainJob) -> str:
    """What is about to run, and where it saves."""
    spec = job.spec
    size = wording.workers(defaults.sizes(spec), defaults.processes_per_worker(spec))
    folder = defaults.job_storage(job)
    return f"{job.metadata.name}: {size}; " + (
        f"checkpoints in {folder}" if folder else "no storage: checkpoints are gone when this command ends"
    )


class Show:
    """The launcher's listener: passes what happens to the display, after one line about what is run and where it
    saves.
    """

    def __init__(self, display: displays.Display, job: TrainJob, tracking: Tracking | None = None) -> None:
        self._display, self._opening, self._tracking = display, opening(job), tracking

    def __call__(self, event: LocalEvent) -> None:
        """Show one event. Kubernetes events are left out: the job's status, which is shown, says the same."""
        if self._opening:
            self._display.note(self._opening)
            self._opening = ""
        if event.kind == "status" and event.job is not None:
            self._display.status(shown_here(event.job))
        elif event.kind == "line":
            self._display.line(event.text)
        elif event.kind == "note":
            self._display.note(event.text)
        if event.job is not None and self._tracking is not None:
            self._tracking.look(event.job)
