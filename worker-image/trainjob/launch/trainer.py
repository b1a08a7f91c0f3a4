"""`TorchTrainer`: Ray Train's face on a TrainJob that this machine runs, or a cluster.

User code calls it. It checks its arguments, packs the training function, builds the TrainJob (`job.py`), has it run
(`local.py`; on a cluster `cluster_run.py` does all of it) and reads what it left (`result.py`); what happens to a
failing job is the operator's decision alone.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainjob.launch import job as jobs
from trainjob.launch import worker
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.handover import payload
from trainjob.launch.handover.callbacks import RunContext, follows_reports
from trainjob.launch.handover.config import RunConfig, ScalingConfig, TorchConfig
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.launch.handover.validation import ValidationConfig
from trainjob.launch.outcome import stored, verdict
from trainjob.launch.outcome.reports import Follower
from trainjob.launch.outcome.stored import Settings
from trainjob.screen import display as displays
from trainjob.screen import wording
from trainjob.session.arguments import told_of
from trainjob.session.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trainjob.launch.cluster.cluster_run import ClusterRun
    from trainjob.launch.cluster.kubernetes import Kubernetes
    from trainjob.launch.local.backend import LocalEvent, LocalOutcome
    from trainjob.launch.outcome.result import Result
    from trainjob_api.v1alpha1 import Failure, TrainJob

_POLL_S = 0.5

TrainLoop = Callable[[], Any] | Callable[[dict[str, Any]], Any]


@told_of(WAYS_OUT)
class TorchTrainer:
    """Distributed PyTorch training of a function, with recovery: on this machine, or with `backend` on a cluster.

    - `train_loop_per_worker`: `f()`, `f(config)`, or a class or object that is called like that; it runs in every
      rank.
    - `train_loop_config`: what `f` is called with; absent: an empty dict.
    - `scaling_config`, `run_config`, `torch_config`: how many ranks, where they store and what they survive, and the
      process group.
    - `resume_from_checkpoint`: a stored checkpoint where the first attempt of a new run begins.
    - `validation_config`: a ValidationConfig: what checkpoints are validated with, beside the training.
    - `backend`: `Kubernetes(...)` for pods; absent: processes of this machine.
    - `datasets`, `dataset_config`, `metadata`: Ray Train's names; datasets are refused with the way out, the others
      have no effect.

    Raises ConfigError (a ValueError) that names the argument.

    ```python
    result = TorchTrainer(
        train,
        train_loop_config={"lr": 1e-3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits", failure_config=FailureConfig(max_failures=3)),
    ).fit()
    print(result.metrics["loss"], result.checkpoint.path)
    ```
    """

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: Any = None,
        validation_config: ValidationConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        backend: Kubernetes | None = None,
    ) -> None:
        worker.check_loop(train_loop_per_worker)
        if train_loop_config is not None and not isinstance(train_loop_config, Mapping):
            raise ConfigError("train_loop_config", train_loop_config, "give a dict")
        if datasets:
            raise ConfigError(
                "datasets",
                sorted(datasets),
                "there is no Ray Data here: make the dataset in the training function and use "
                "trainjob.torch.prepare_data_loader",
            )
        for name, given in (("dataset_config", dataset_config), ("metadata", metadata)):
            if given is not None:
                warnings.warn(f"TorchTrainer({name}=...) has no effect", UserWarning, stacklevel=2)
        self._settings = Settings(
            loop=train_loop_per_worker,
            config=train_loop_config,
            torch=_of(TorchConfig, "torch_config", torch_config),
            scaling=_of(ScalingConfig, "scaling_config", scaling_config),
            run=_of(RunConfig, "run_config", run_config),
            resume_from=_resume_from(resume_from_checkpoint),
            validation=_of_validation(validation_config, scaling_config),
            backend=_of_backend(backend),
        )
        self._backend = self._settings.backend
        if self._settings.scaling.num_workers:
            jobs.pack(self._settings.scaling)
        elif self._backend is not None:
            raise ConfigError(
                "ScalingConfig.num_workers", 0, "0 trains in this very process: give 1 or more for a job on a cluster"
            )

    def fit(self) -> Result:
        """Train to the end. Raises TrainingFailedError with the first cause when the job failed.

        With num_workers=0 the function runs in this very process, and what it raises goes through as it is.

        Ctrl-C (KeyboardInterrupt) stops a job on this machine cleanly; on a cluster the job goes on, and a line says
        how to get back to it.
        """
        if self._backend is None:
            return _Fit(self._settings).run()
        from trainjob.launch.cluster import cluster_run

        return cluster_run.fit(self._settings, self._backend)

    def submit(self) -> ClusterRun:
        """Start the job on the cluster of `backend=Kubernetes(...)` and return at once."""
        if self._backend is None:
            raise ConfigError(
                "backend",
                None,
                "submit() starts a job on a cluster: give backend=trainjob.Kubernetes(image=...), or call fit()",
            )
        from trainjob.launch.cluster import cluster_run

        return cluster_run.submit(self._settings, self._backend)

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        train_loop_per_worker: TrainLoop | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        torch_config: TorchConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        backend: Kubernetes | None = None,
    ) -> TorchTrainer:
        """The trainer whose job stored in `path` (Result.path, or storage path and name as they were given), to go on
        from its latest checkpoint, where it ran: on this machine, or on the cluster of its backend. Arguments replace
        what was stored.

        Unpickles a file of that folder: only for folders of your own. Name, storage and namespace are those of the
        folder. `backend` also says how to reach a bucket where this process's environment does not; it is needed
        where the one before set environment variables, whose values are not stored. Raises LaunchError.
        """
        reached = _reached(backend)
        folder = stored.found(path, reached)
        if folder is None:
            raise LaunchError(
                f"{os.fspath(path)} cannot be restored: it holds no {stored.TRAINER_FILE} of a TorchTrainer. Give the "
                f"Result.path of a run, <storage path>/{jobs.LOCAL_NAMESPACE}/<name>; a run on a cluster whose storage "
                "this machine does not see goes on where its script is run again with the same name"
            )
        if stored.completed(folder, reached):
            raise LaunchError(
                f"the run in {folder} completed: there is nothing to restore. To train on, give its checkpoint as "
                "resume_from_checkpoint to a new TorchTrainer"
            )
        before = stored.load(folder, reached)
        if before.withheld and backend is None:
            raise LaunchError(
                f"the run in {folder} gave its pods the environment variables {', '.join(before.withheld)}, whose "
                "values are not kept beside the checkpoints: give restore() the backend=trainjob.Kubernetes(...) again"
            )
        above, name = os.path.split(folder)
        storage, namespace = os.path.split(above)
        return cls(
            train_loop_per_worker or before.loop,
            train_loop_config=before.config if train_loop_config is None else train_loop_config,
            torch_config=torch_config or before.torch,
            scaling_config=scaling_config or before.scaling,
            run_config=replace(run_config or before.run, name=name, storage_path=storage),
            datasets=datasets,
            validation_config=before.validation,
            backend=_in_namespace(backend or before.backend, namespace),
        )

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], *, backend: Kubernetes | None = None) -> bool:
        """Whether a TorchTrainer ran in that folder; `backend` as for restore()."""
        return stored.found(path, _reached(backend)) is not None


class _Fit:
    """One `fit()`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        run = settings.run
        self._name = (
            jobs.job_name(run.name) if run.name else jobs.unique_name(getattr(settings.loop, "__name__", "train"))
        )
        root = jobs.storage_root(run.storage_path or jobs.DEFAULT_STORAGE)
        self._folder = os.path.join(root, jobs.LOCAL_NAMESPACE, self._name)
        self._context = RunContext(name=self._name, path=self._folder, run_config=run, scaling_config=settings.scaling)
        self._follower = Follower(self._folder)
        self._polled = 0.0
        self._failure: Failure | None = None
        self._returned: bytes | None = None

    def run(self) -> Result:
        """Build, run, read."""
        if self._settings.scaling.num_workers == 0:
            from trainjob.launch.in_process import fit

            return fit.fit(self._settings, self._context)
        from trainjob.launch.local.backend import LocalOptions, run_job

        content = payload.Payload(
            train_loop=self._settings.loop,
            config=self._settings.config,
            stop=self._settings.run.stop,
            validation=self._settings.validation,
        )
        body = payload.dumps(content)
        options = LocalOptions(prepare=lambda folder: self._prepare(folder, body), collect=self._collect)
        self._display = displays.choose(plain=False, silent=self._settings.run.verbose == 0)
        try:
            if self._settings.run.name and self._name != self._settings.run.name:
                self._display.note(f"the job's name is {self._name} (made of {self._settings.run.name!r})")
            self._display.note(opening(self._name, self._settings.scaling, self._folder))
            # The last notes too: a display that was closed would begin anew.
            return self._conclude(run_job(self._job(), options=options, listener=self._listen))
        finally:
            self._display.close()

    def _job(self) -> TrainJob:
        # -P: a module of the folder that the launcher was started in must not hide the launcher's own of that name.
        command = (*jobs.escaped((sys.executable, "-P", "-m", "trainjob.launch.worker")), _PAYLOAD)
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
            backend=torch.backend,
            timeout_s=torch.timeout_s,
            use_gpu=self._settings.scaling.use_gpu,
            return_path=os.path.join(scratch, "returned"),
            all_ranks=follows_reports(self._settings.run.callbacks),
            sys_path=[os.path.abspath(entry) for entry in sys.path],
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
            self._display.status(event.job)
            self._tell_of_failures(event.job)
        if self._settings.run.callbacks and event.job is not None and time.monotonic() - self._polled > _POLL_S:
            self._polled = time.monotonic()
            self._report(event.job, final=False)

    def _tell_of_failures(self, job: TrainJob) -> None:
        """The callbacks hear of each failure once."""
        status = job.status
        if status.last_failure is not None and status.last_failure != self._failure:
            self._failure = status.last_failure
            error = verdict.failed_error(self._failure)
            for callback in self._settings.run.callbacks:
                callback.after_exception(
                    self._context, {-1 if self._failure.rank is None else self._failure.rank: error}
                )

    def _report(self, job: TrainJob, *, final: bool) -> None:
        attempt = job.status.attempt
        if attempt is None:
            return
        for report in self._follower.poll(attempt.run, attempt.number, final=final):
            for callback in self._settings.run.callbacks:
                callback.after_report(self._context, report.by_rank, report.checkpoint)

    def _conclude(self, outcome: LocalOutcome) -> Result:
        status = outcome.job.status
        if self._settings.run.callbacks:
            self._report(outcome.job, final=True)
        if outcome.interrupted:
            self._display.note(f"stopped; a TorchTrainer with name={self._name!r} goes on from the latest checkpoint")
            raise KeyboardInterrupt
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


_PAYLOAD = "$(TRAINJOB_LOCAL_SCRATCH)/payload"


def _of(kind: type[Any], name: str, given: Any) -> Any:
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise ConfigError(name, given, f"give a {kind.__name__}")
    return given


def _of_validation(given: ValidationConfig | None, scaling: ScalingConfig | None) -> ValidationConfig | None:
    if given is None:
        return None
    if scaling is not None and scaling.num_workers == 0:
        raise ConfigError("validation_config", given, "with num_workers=0 validate in the loop, or give 1 worker")
    found: ValidationConfig = _of(ValidationConfig, "validation_config", given)
    return found


def _of_backend(given: Kubernetes | None) -> Kubernetes | None:
    if given is None:
        return None
    from trainjob.launch.cluster.kubernetes import Kubernetes

    return given if isinstance(given, Kubernetes) else _of(Kubernetes, "backend", given)


def _reached(backend: Kubernetes | None) -> dict[str, str] | None:
    """By which a job's bucket is reached; None: by this process's environment."""
    checked = _of_backend(backend)
    if checked is None:
        return None
    from trainjob.launch.cluster import bucket

    return bucket.environ_of(checked, os.environ)


def _in_namespace(backend: Kubernetes | None, namespace: str) -> Kubernetes | None:
    """A run's checkpoints are found in its own namespace alone."""
    if backend is None or backend.namespace == namespace:
        return backend
    if backend.namespace is not None:
        raise ConfigError(
            "Kubernetes.namespace",
            backend.namespace,
            f"the run that is restored was in namespace {namespace}: give that, or leave it out",
        )
    return replace(backend, namespace=namespace)


def _resume_from(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "auto"
    if not isinstance(checkpoint, Checkpoint):
        raise ConfigError(
            "resume_from_checkpoint", checkpoint, "give a trainjob.Checkpoint, for example Result.checkpoint"
        )
    path = checkpoint.path
    return checkpoint.uri or path  # of one whose files are elsewhere: what is stored of it


def opening(name: str, scaling: ScalingConfig, folder: str) -> str:
    """What is about to run, and where its results come to lie."""
    return f"{name}: {wording.sizes(range(scaling.least, scaling.most + 1), 'rank')}, results in {folder}"
