"""The local backend: runs one TrainJob on this machine with the operator's own reconciler, and agents as processes.

`run_job` is called by `trainer.py` and the command line. The control side (in-process cluster, coordinator on loopback,
reconciler, kubelet) runs in a thread of its own, so that it works below a notebook's running loop, a slow listener
delays nothing, and Ctrl-C arrives where it can be answered: in the caller's thread.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainjob.agent.processes import cores
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import checks, environment, gpus, scratch
from trainjob.launch.local.drive import Driver, Stop
from trainjob.launch.local.kept.keeper import Keeper
from trainjob.launch.local.kubelet import Machine
from trainjob.launch.local.lock import JobLock
from trainjob.launch.local.registry.recorder import Recorder
from trainjob.launch.outcome.log_choice import AGENT
from trainjob.screen.asked import Asker, in_words_of, job_in_words_of
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob


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
class LocalEvent:
    """Something to show."""

    kind: Literal["status", "line", "event", "note"]
    """status: `job` changed; line: a worker wrote `text`; event: `text` is a Kubernetes event's; note: `text` is the
    launcher's own.
    """
    text: str = ""
    job: TrainJob | None = None
    pod: str | None = None
    """Whose output a line is."""
    warning: bool = False
    """An event of type Warning."""


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


Listener = Callable[[LocalEvent], None]


def run_job(job: TrainJob, *, options: LocalOptions | None = None, listener: Listener | None = None) -> LocalOutcome:
    """Run the job to its end. Blocks; the listener is called in this thread.

    Ctrl-C (or SIGTERM) stops it cleanly: ranks end, what is staged is stored; a second one kills everything at once.
    Raises InvalidTrainJob or LaunchError when it cannot be started; an error of the listener stops the job cleanly and
    goes through.
    """
    options = options or LocalOptions()
    tell = listener or (lambda _event: None)
    if job.spec.suspend:
        raise LaunchError("spec.suspend is true: the job would wait for ever. Set it to false to run it here")
    wished, job = job, checks.fitted(job, base_environment(options))
    checks.check(job, base_environment(options), options.working_dir or os.getcwd())
    if job.spec.workers < wished.spec.workers:
        text = (
            f"{wished.spec.workers} workers are wished, and there are GPUs for {job.spec.workers}: it trains with these"
        )
        tell(LocalEvent(kind="note", text=text))
    scratch.sweep()
    with contextlib.ExitStack() as stack:
        keeper = Keeper(job, lambda text: session.note(text))
        machine, token = _machine(job, stack, options, tell, keeper)
        if options.prepare is not None:
            options.prepare(machine.scratch.path)
        # Under the name's lock: a record has one writer.
        recorder = Recorder(job, lambda text: tell(LocalEvent(kind="note", text=text)))
        driver = Driver(_with_own_port(job), machine, token, lambda: recorder.asked_to_stop)
        session = _Session(driver, tell, recorder, options.asker)
        final: TrainJob | None = None
        try:
            final, interrupted = session.run()
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
        kept=keeper if options.uses_kept and defaults.uses_agent(job.spec) else None,
    )
    return machine, token


def base_environment(options: LocalOptions | None = None) -> dict[str, str]:
    """What a pod's environment begins with."""
    options = options or LocalOptions()
    return environment.with_packages({**environment.inherited(os.environ), **options.environment})


class _Session:
    """The caller's side of a running job: hands events on, answers Ctrl-C."""

    def __init__(self, driver: Driver, tell: Listener, recorder: Recorder, asker: Asker) -> None:
        self._driver = driver
        self._asker = asker
        self._tell = tell
        self._recorder = recorder
        self._events: queue.SimpleQueue[LocalEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._drive, name="trainjob-local", daemon=True)
        self._result: TrainJob | None = None
        self._error: BaseException | None = None

    def note(self, text: str) -> None:
        """Show that; from any thread."""
        self._events.put(LocalEvent(kind="note", text=text))

    def run(self) -> tuple[TrainJob, bool]:
        """(final object, whether it was interrupted)."""
        trouble: BaseException | None = None
        interrupted = False
        with _sigterm_interrupts(), self._joined():
            self._thread.start()
            while True:
                try:
                    if not self._listen(mute=trouble is not None):
                        break
                except KeyboardInterrupt:
                    self._driver.stop(Stop.AT_ONCE if interrupted else Stop.CLEANLY)
                    text = (
                        "killing the workers"
                        if interrupted
                        else "stopping: ranks end, what is staged is stored (again: kill at once)"
                    )
                    interrupted = True
                    self.note(text)
                except Exception as error:  # of the user's listener: the job must not go on unseen
                    trouble = trouble or error
                    self._driver.stop(Stop.CLEANLY)
        if trouble is not None:
            raise trouble
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result, (interrupted or self._driver.asked_to_stop) and not self._result.status.finished

    @contextlib.contextmanager
    def _joined(self) -> Iterator[None]:
        """However the caller's side ends (a Ctrl-C inside the handling of another one), the folder below the agents
        stays until they are gone.
        """
        try:
            yield
        finally:
            if self._thread.ident is not None:
                if self._thread.is_alive() and self._error is None and self._result is None:
                    self._driver.stop(Stop.AT_ONCE)
                self._thread.join()

    def _listen(self, *, mute: bool) -> bool:
        """Hand events on until the driver ended (False)."""
        while True:
            try:
                event = self._events.get(timeout=self._recorder.due_s)
            except queue.Empty:
                self._recorder.catch_up()
                continue
            if event is None:
                return False
            if event.kind == "line":
                self._recorder.line(event.text)
            elif event.kind == "status" and event.job is not None:
                self._recorder.status(event.job)
            if not mute:
                self._tell(event)

    def _drive(self) -> None:
        try:
            self._result = job_in_words_of(self._asker, self._driver.run(self._publish))
        except BaseException as error:  # the thread's top: the caller raises it
            self._error = error
        finally:
            self._events.put(None)

    def _publish(self, kind: Literal["status", "line", "event", "note"], **content: Any) -> None:
        event = LocalEvent(kind=kind, **content)
        if event.job is not None:
            event = replace(event, job=job_in_words_of(self._asker, event.job))
        elif event.text.startswith(AGENT):  # a rank's own lines are its script's
            event = replace(event, text=in_words_of(self._asker, event.text))
        self._events.put(event)


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """In the main thread SIGTERM and SIGHUP stop the job as Ctrl-C does, unless the program has handlers of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


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
