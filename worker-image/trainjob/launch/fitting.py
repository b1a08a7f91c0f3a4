"""One `fit()` on this machine: builds the TrainJob, has the local backend run it, reads what it left.

`trainer.py` calls it. With num_workers=0 the function runs in this very process (`in_process/fit.py`).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from trainjob.launch import job as jobs
from trainjob.launch import nested
from trainjob.launch.handover import payload, source
from trainjob.launch.handover.callbacks import follows_reports
from trainjob.launch.handover.config import ScalingConfig
from trainjob.launch.outcome import last_good, stored, verdict
from trainjob.launch.outcome.hearers import Hearers, Polled, place
from trainjob.launch.outcome.stored import Settings
from trainjob.screen import display as displays
from trainjob.screen import streams, wording
from trainjob.screen.asked import Asker, shown_here
from trainjob.session import large_imports, torch_folder
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob.launch.local.backend import LocalEvent, LocalOutcome
    from trainjob.launch.outcome.result import Result
    from trainjob_api.v1alpha1 import TrainJob

_PAYLOAD = "$(TRAINJOB_LOCAL_SCRATCH)/payload"


class Fit:
    """One `fit()`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        run = settings.run
        self._name = (
            jobs.job_name(run.name) if run.name else jobs.unique_name(getattr(settings.loop, "__name__", "train"))
        )
        root = jobs.storage_root(run.storage_path or jobs.DEFAULT_STORAGE)
        self._folder = os.path.join(root, jobs.LOCAL_NAMESPACE, self._name)
        self._context = settings.context(self._name, self._folder)
        self._hearers, self._polled = Hearers(run.callbacks, self._context), Polled(self._folder)
        self._returned: bytes | None = None

    def run(self) -> Result:
        """Build, run, read."""
        streams.have_all()
        if self._settings.scaling.num_workers == 0:
            from trainjob.launch.in_process import fit

            return fit.fit(self._settings, self._context)
        nested.refuse(os.environ)
        with large_imports.quietly():
            from trainjob.launch.local import checks
            from trainjob.launch.local.backend import LocalOptions, run_job

        script = getattr(sys.modules["__main__"], "__file__", None)
        if script is not None:  # its folder comes first in the ranks too
            checks.check_beside(os.path.dirname(os.path.abspath(script)))
        content = payload.Payload(
            train_loop=self._settings.loop,
            config=self._settings.config,
            stop=self._settings.run.stop,
            validation=self._settings.validation,
        )
        body = payload.dumps(content)
        options = LocalOptions(
            prepare=lambda folder: self._prepare(folder, body), collect=self._collect, asker=Asker.PYTHON
        )
        self._display = displays.choose(plain=False, silent=self._settings.run.verbose == 0)
        try:
            if self._settings.run.name and self._name != self._settings.run.name:
                self._display.note(f"the job's name is {self._name} (made of {self._settings.run.name!r})")
            self._display.note(opening(self._name, self._settings.scaling, self._folder))
            # The last notes too: a display that was closed would begin anew.
            with self._hearers.of_the_end():
                return self._conclude(run_job(self._job(), options=options, listener=self._listen))
        finally:
            self._display.close()

    def _job(self) -> TrainJob:
        # -P: a module of the folder that the launcher was started in must not hide the launcher's own of that name.
        command = (*jobs.escaped((sys.executable, "-P", "-m", contract.WORKER_MODULE)), _PAYLOAD)
        settings = self._settings
        trainer = jobs.TrainerJob(
            command=command,
            name=self._name,
            scaling=settings.scaling,
            run=settings.run,
            torch=settings.torch,
            resume_from=settings.resume_from,
        )
        return jobs.from_trainer(trainer)

    def _prepare(self, scratch: str, body: bytes) -> None:
        """The payload for the ranks, and what `restore` needs."""
        torch = self._settings.torch
        header = payload.Header(
            name=self._settings.run.name,
            framework=self._settings.framework,
            backend=torch.backend,
            timeout_s=torch.timeout_s,
            use_gpu=self._settings.scaling.use_gpu,
            return_path=os.path.join(scratch, "returned"),
            all_ranks=follows_reports(self._settings.run.callbacks),
            sys_path=[os.path.abspath(entry) for entry in sys.path if entry != torch_folder.path()],
            code=source.read(self._settings.loop, framework=self._settings.framework),
        )
        payload.write(os.path.join(scratch, "payload"), body, header)
        stored.store(self._folder, self._settings)

    def _collect(self, scratch: str) -> None:
        try:
            with open(os.path.join(scratch, "returned"), "rb") as file:
                self._returned = file.read()
        except FileNotFoundError:
            pass

    def _listen(self, event: LocalEvent) -> None:
        if event.kind == "line":
            self._display.line(event.text)
        elif event.kind == "note":
            self._display.note(event.text)
        elif event.kind == "status" and event.job is not None:
            self._display.status(shown_here(event.job))
            self._hearers.failure(event.job)
        if self._hearers and event.job is not None:
            self._hearers.reports(self._polled.new(*place(event.job)))

    def _conclude(self, outcome: LocalOutcome) -> Result:
        status = outcome.job.status
        if self._hearers:
            self._hearers.reports(self._polled.last(*place(outcome.job)))
        if outcome.interrupted:
            starts = "starts from the beginning: nothing was saved"
            effect = "resumes from the latest checkpoint" if verdict.has_saved(status) else starts
            self._display.note(f"stopped; a trainer with name={self._name!r} {effect}")
            raise KeyboardInterrupt
        for line in last_good.lines(outcome.job, self._folder, ""):
            self._display.note(line.strip())
        from trainjob.launch.outcome import result as results

        if status.holds("Complete"):
            return results.read(self._folder, return_value=self._return_value(), status=status)
        error = verdict.of_failed(outcome.job)
        error.result = results.read(self._folder, error=error, status=status)
        raise error

    def _return_value(self) -> Any:
        if self._returned is None:
            return None
        import cloudpickle

        return cloudpickle.loads(self._returned)


def opening(name: str, scaling: ScalingConfig, folder: str) -> str:
    """What is about to run, and where its results come to lie."""
    return f"{name}: {wording.sizes(range(scaling.least, scaling.most + 1), 'rank')}, results in {folder}"
