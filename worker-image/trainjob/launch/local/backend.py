"""The local backend: runs one TrainJob on this machine with the operator's own reconciler, and agents as processes.

`run_job` is called by `trainer.py` and the command line. The control side (in-process cluster, coordinator on loopback,
reconciler, kubelet) runs in a thread of its own, so that it works below a notebook's running loop, a slow listener
delays nothing, and Ctrl-C arrives where it can be answered: in the caller's thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainjob.agent.processes import cores
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import checks, environment, gpus, scratch
from trainjob.launch.local.caller import Caller, Listener, LocalEvent
from trainjob.launch.local.drive import Driver
from trainjob.launch.local.interrupts import interrupts
from trainjob.launch.local.kept.keeper import Keeper
from trainjob.launch.local.kept.shared import Shared
from trainjob.launch.local.kubelet import Machine
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.process import Kept
from trainjob.launch.local.registry.recorder import Recorder
from trainjob.screen.asked import Asker
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob

__all__ = ["LocalEvent", "LocalOptions", "LocalOutcome", "base_environment", "run_job"]


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """How this machine runs a job; nothing of it is the job's own."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own environment for all pods."""
    working_dir: str | None = None
    """Of the workers, unless their container has a workingDir; None: the launcher's."""
    lock_wait_s: float = 60.0
    """How long to wait for the orphaned workers of a killed launcher of that name."""
    prepare: Callable[[str], None] | None = None
    """Called with the job's private folder before pods start; what is put there goes when the job ends."""
    collect: Callable[[str], None] | None = None
    """Called with that folder after the last pod ended, before it is removed."""
    asker: Asker = Asker.MANIFEST
    """In whose words the job's events and its record are."""
    uses_kept: bool = False
    """A warm process that is kept may start the agents (`kept`)."""
    keep_warm_s: float | None = None
    """Have one for the next job, for so long after this one; None: whatever is there stays as it is."""


@dataclass(frozen=True, kw_only=True)
class LocalOutcome:
    """How it ended."""

    job: TrainJob
    """The object as it was last."""
    storage: str | None
    """The job's folder."""
    interrupted: bool
    """Stopped by Ctrl-C or SIGTERM before it finished; its checkpoints are stored, and a run of the same name goes
    on.
    """


def run_job(job: TrainJob, *, options: LocalOptions | None = None, listener: Listener | None = None) -> LocalOutcome:
    """Run the job to its end. Blocks; the listener is called in this thread.

    Ctrl-C (or SIGTERM) stops it cleanly: ranks end, what is staged is stored; a second one kills everything at once.
    One that comes when the job has ended changes nothing of it; SIGTERM and SIGHUP, and any for which the program has a
    handler of its own, come when this has put all away.
    Raises InvalidTrainJob or LaunchError when it cannot be started; an error of the listener stops the job cleanly and
    goes through.
    """
    options = options or LocalOptions()
    tell = listener or (lambda _event: None)
    if job.spec.suspend:
        raise LaunchError("spec.suspend is true: the job would wait for ever. Set it to false to run it here")
    wished, job = job, checks.fitted(job, base_environment(options))
    checks.check(job, base_environment(options), options.working_dir or os.getcwd(), options.asker)
    if job.spec.workers < wished.spec.workers:
        text = (
            f"{wished.spec.workers} workers are wished, and there are GPUs for {job.spec.workers}: it trains with these"
        )
        tell(LocalEvent(kind="note", text=text))
    scratch.sweep()
    with interrupts() as signals, contextlib.ExitStack() as stack:
        keeper = Keeper(job, lambda text: caller.note(text))
        try:
            signals.let_through()
            machine, token = _machine(job, stack, options, tell, keeper)
            if options.prepare is not None:
                options.prepare(machine.scratch.path)
        finally:  # from here on the caller's side answers one, until the job has its end
            signals.held = True
        # Under the name's lock: a record has one writer.
        recorder = Recorder(job, lambda text: tell(LocalEvent(kind="note", text=text)), lambda text: caller.note(text))
        driver = Driver(_with_own_port(job), machine, token, lambda: recorder.asked_to_stop)
        caller = Caller(driver, tell, recorder, options.asker)
        final: TrainJob | None = None
        try:
            final, interrupted = caller.run()
        finally:
            recorder.end(final or driver.job)
        if options.collect is not None:
            options.collect(machine.scratch.path)
        if options.keep_warm_s is not None:
            tell(LocalEvent(kind="note", text=keeper.keep(options.keep_warm_s)))
    return LocalOutcome(job=final, storage=defaults.job_storage(job), interrupted=interrupted)


def _machine(
    job: TrainJob, stack: contextlib.ExitStack, options: LocalOptions, tell: Listener, keeper: Keeper
) -> tuple[Machine, str]:
    """What pods need of this machine, and the token that their agents show; the stack gives it all back."""
    base = base_environment(options)
    folder = defaults.job_storage(job)
    lock = None
    if folder is not None:
        lock = stack.enter_context(
            JobLock(folder, wait_s=options.lock_wait_s, on_wait=lambda text: tell(LocalEvent(kind="note", text=text)))
        )
    space = _scratch()
    stack.callback(space.remove)
    reader, writer = os.pipe()
    stack.callback(os.close, writer)
    stack.callback(os.close, reader)
    token = secrets.token_hex(32)
    machine = Machine(
        scratch=space,
        base_environment=_threads(base, job),
        working_dir=options.working_dir or os.getcwd(),
        parent_fd=reader,
        token_file=_private(os.path.join(space.path, "token"), token),
        gpus=gpus.GpuPool(gpus.visible(base)),
        lock=(lock.path, lock.descriptor) if lock else None,
        kept=_kept(job, stack, options, keeper, space, reader),
    )
    return machine, token


def _kept(
    job: TrainJob, stack: contextlib.ExitStack, options: LocalOptions, keeper: Keeper, space: scratch.Scratch, pipe: int
) -> tuple[Kept, ...]:
    """What agents may be started of, first that which is there already."""
    if not defaults.uses_agent(job.spec):
        return ()
    found: list[Kept] = [keeper] if options.uses_kept else []
    if Shared.is_for(job):
        shared = Shared(job, space.path, space.tmp, pipe, keeper.say)
        stack.callback(shared.close)
        found.append(shared)
    return tuple(found)


def base_environment(options: LocalOptions | None = None) -> dict[str, str]:
    """What a pod's environment begins with."""
    options = options or LocalOptions()
    return environment.with_packages({**environment.inherited(os.environ), **options.environment})


def _threads(base: Mapping[str, str], job: TrainJob) -> dict[str, str]:
    """Ranks share this machine's cores, and speak over loopback alone; the user's own settings stay."""
    ranks = job.spec.workers * defaults.processes_per_worker(job.spec)
    loopback = "lo" if os.path.exists("/sys/class/net/lo") else "lo0"
    return {
        "OMP_NUM_THREADS": str(cores.share(ranks)),
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
        "PYTHONUNBUFFERED": "1",
        **base,
    }


def _scratch() -> scratch.Scratch:
    try:
        return scratch.Scratch()
    except OSError as error:
        raise _no_temporary_folder(error) from error


def _private(path: str, text: str) -> str:
    """Write a file that this user alone can read; returns its path."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise _no_temporary_folder(error) from error
    return path


def _no_temporary_folder(error: OSError) -> LaunchError:
    return LaunchError(
        f"the temporary folder {tempfile.gettempdir()} cannot be used ({error.strerror or error}): free some space "
        "there, or set TMPDIR"
    )


def _with_own_port(job: TrainJob) -> TrainJob:
    """Without agents nobody picks a free port at each start, and two plain jobs on one machine would meet on the
    default one.
    """
    if defaults.uses_agent(job.spec):
        return job
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = int(server.getsockname()[1])
    rendezvous = job.spec.rendezvous.model_copy(update={"port": min(free, 65535 - contract.PORT_SPREAD)})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"rendezvous": rendezvous})})
