"""`TorchTrainer.fit()` with num_workers=0: the training function in this very process."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainjob import session
from trainjob.launch import job as jobs
from trainjob.launch import worker
from trainjob.launch.handover import frameworks, payload
from trainjob.launch.handover.callbacks import follows_reports
from trainjob.launch.in_process.guest import Guest
from trainjob.launch.in_process.places import opening, place
from trainjob.launch.outcome import result as results
from trainjob.launch.outcome import stored, verdict
from trainjob.launch.outcome.hearers import Hearers, Polled
from trainjob.screen import notebook, streams
from trainjob.session.link import link

if TYPE_CHECKING:
    from trainjob.launch.handover.callbacks import RunContext
    from trainjob.launch.in_process.guest import End
    from trainjob.launch.in_process.places import Place
    from trainjob.launch.outcome.result import Result
    from trainjob.launch.outcome.stored import Settings
    from trainjob_api.v1alpha1 import TrainJob


def fit(settings: Settings, context: RunContext) -> Result:
    """Train here. What the function raises goes through as it is; Ctrl-C stops the job, which can go on later.

    Raises LaunchError or InvalidTrainJob when it cannot begin, TrainingFailedError when the function came to its end
    and the job did not (what it saved could not be stored).
    """
    return _InProcess(settings, context, place(os.environ)).run()


class _InProcess:
    """One such `fit()`."""

    def __init__(self, settings: Settings, context: RunContext, where: Place) -> None:
        self._settings, self._context, self._where = settings, context, where
        self._hearers = Hearers(settings.run.callbacks if where.rank == 0 else (), context)
        self._polled = Polled(context.path)
        self._place: tuple[int | None, int] = (None, 1)
        in_view = self._talks and where.rank == 0 and notebook.in_kernel()
        self._display = notebook.NotebookDisplay() if in_view else None

    def run(self) -> Result:
        """Begin, train, end."""
        try:
            with self._hearers.of_the_end():
                return self._run()
        finally:
            if self._display is not None:
                self._display.close()

    def _run(self) -> Result:
        job = _job(self._settings, self._context.name)
        guest = Guest(job, self._where, show=self._talks, display=self._display)
        self._say(opening(job, self._where))
        guest.begin()
        if self._where.rank:  # a run without a name got its name in rank 0's process
            who = link().context
            self._context = replace(self._context, name=who.job, path=who.storage or self._context.path)
        returned, ended_by = None, None
        try:
            returned = self._train()
        except BaseException as error:
            if self._where.rank or not guest.tells_of_its_end(error):
                end = self._closed(guest, error)
                if isinstance(error, KeyboardInterrupt):
                    self._say_stopped()
                elif end is not None and end.job.status.holds("Complete"):  # a report() that met the stop criterion
                    return self._conclude(end, None)
                elif isinstance(error, Exception):
                    self._tell_of(error)
                elif end is not None:  # sys.exit()
                    self._tell_last_reports()
                    self._hearers.failure(end.job)
                raise
            ended_by = error  # and how the job has ended tells more
        return self._conclude(self._closed(guest, ended_by), returned)

    def _closed(self, guest: Guest, error: BaseException | None) -> End | None:
        end = guest.close(error)
        if end is not None and self._display is not None:
            self._display.status(end.job)
        return end

    def _train(self) -> Any:
        """The function's value, with a process group up as in every rank."""
        settings, who = self._settings, link().context
        self._place = (who.run, who.attempt)
        if self._where.rank == 0:
            stored.store(self._context.path, settings)
        if self._hearers and not jobs.is_s3(self._context.path):  # a bucket is asked at the end, and at no step
            session.after_report = self._reported
        worker.install_stop(settings.run.stop)
        header = payload.Header(
            name=settings.run.name,
            framework=settings.framework,
            backend=settings.torch.backend,
            timeout_s=settings.torch.timeout_s,
            use_gpu=settings.scaling.use_gpu,
            return_path=None,
            all_ranks=follows_reports(settings.run.callbacks),
            sys_path=[],
        )
        theirs = frameworks.has_process_group()
        worker.tell_session(header)
        frameworks.start(header)
        try:
            return worker.call(settings.loop, settings.config)
        finally:
            # Of several ranks one that failed must not wait for the others here.
            if not theirs and (self._where.world_size == 1 or sys.exc_info()[0] is None):
                frameworks.stop()

    def _conclude(self, end: End | None, returned: Any) -> Result:
        if end is not None:
            self._tell_last_reports()
        if end is None or end.job.status.holds("Complete"):
            status = None if end is None else end.job.status
            return results.read(self._context.path, return_value=returned, status=status)
        if end.interrupted:
            self._say_stopped()
            raise KeyboardInterrupt
        self._hearers.failure(end.job)
        error = verdict.of_failed(end.job)
        error.result = results.read(self._context.path, error=error, status=end.job.status)
        raise error

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def _reported(self) -> None:
        """After each report(), in the loop's own thread."""
        self._hearers.reports(self._polled.new(*self._place))

    def _tell_of(self, error: Exception) -> None:
        self._tell_last_reports()
        self._hearers.exception(self._where.rank, error)

    def _tell_last_reports(self) -> None:
        if self._hearers:
            self._hearers.reports(self._polled.last(*self._place))

    # -- words ---------------------------------------------------------------------------------------------------------

    @property
    def _talks(self) -> bool:
        return self._settings.run.verbose != 0

    def _say_stopped(self) -> None:
        self._say(f"stopped; a {self._settings.trainer} with name={self._context.name!r} resumes from its checkpoint")

    def _say(self, text: str) -> None:
        if self._display is not None:
            self._display.note(text)
        elif self._talks and self._where.rank == 0:
            streams.say(text)


def _job(settings: Settings, name: str) -> TrainJob:
    """The settings' job; `Guest` gives it its one worker and its command."""
    trainer = jobs.TrainerJob(
        command=("-",),
        name=name,
        scaling=replace(
            settings.scaling, num_workers=1, use_gpu=False, resources_per_worker=None, label_selector=None,
            accelerator_type=None, gpus_per_pod=None, trainer_resources=None,
        ),
        run=settings.run,
        torch=settings.torch,
        resume_from=settings.resume_from,
    )  # fmt: skip
    return jobs.from_trainer(trainer)
