"""`DataParallelTrainer` and `TorchTrainer`: Ray Train's face on a TrainJob that this machine runs, or a cluster.

User code calls them. They check their arguments; `fitting.py` has the job run on this machine, `cluster_run.py` on a
cluster. What happens to a failing job is the operator's decision alone.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from trainjob.launch import job as jobs
from trainjob.launch import worker
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.fitting import Fit
from trainjob.launch.handover import payload
from trainjob.launch.handover.config import RunConfig, ScalingConfig, TorchConfig
from trainjob.launch.handover.ray_arguments import WAYS_OUT
from trainjob.launch.handover.validation import ValidationConfig
from trainjob.launch.outcome import callers_view, stored
from trainjob.launch.outcome.stored import Settings
from trainjob.session.arguments import told_of
from trainjob.session.checkpoint import Checkpoint

if TYPE_CHECKING:
    from trainjob.launch.cluster.cluster_run import ClusterRun
    from trainjob.launch.cluster.kubernetes import Kubernetes
    from trainjob.launch.outcome.result import Result

TrainLoop = Callable[[], Any] | Callable[[dict[str, Any]], Any]


@told_of(WAYS_OUT)
class DataParallelTrainer:
    """A function on several ranks, with recovery: on this machine, or with `backend` on a cluster. Nothing of torch is
    imported, and there is no process group: for scikit-learn, XGBoost, LightGBM or whatever you bring.

    - `train_loop_per_worker`: `f()`, `f(config)`, or a class or object that is called like that; it runs in every
      rank.
    - `train_loop_config`: what `f` is called with; absent: an empty dict.
    - `scaling_config`, `run_config`: how many ranks, where they store and what they survive.
    - `resume_from_checkpoint`: a stored checkpoint where the first attempt of a new run begins.
    - `validation_config`: a ValidationConfig: what checkpoints are validated with, beside the training.
    - `backend`: `Kubernetes(...)` for pods; absent: processes of this machine.
    - `datasets`, `dataset_config`, `metadata`: Ray Train's names; datasets are refused with the way out, the others
      have no effect.

    Raises ConfigError (a ValueError) that names the argument.

    ```python
    result = DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
    ```
    """

    def __init__(
        self,
        train_loop_per_worker: TrainLoop,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
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
            raise ConfigError("datasets", sorted(datasets), self._DATA)
        for name, given in (("dataset_config", dataset_config), ("metadata", metadata)):
            if given is not None:
                warnings.warn(f"{type(self).__name__}({name}=...) has no effect", UserWarning, stacklevel=3)
        self._settings = Settings(
            trainer=type(self).__name__,
            loop=train_loop_per_worker,
            config=train_loop_config,
            torch=TorchConfig(),
            framework=self._FRAMEWORK,
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

    _FRAMEWORK = payload.NONE
    _DATA = "there is no Ray Data here: read the data in the training function, each rank its part"

    @property
    def train_loop_per_worker(self) -> TrainLoop:
        """The function, as it was given."""
        return self._settings.loop

    @property
    def train_loop_config(self) -> Mapping[str, Any] | None:
        """What it is called with, as it was given."""
        return self._settings.config

    @property
    def run_config(self) -> RunConfig:
        """As it was given, or the default."""
        return self._settings.run

    @property
    def scaling_config(self) -> ScalingConfig:
        """As it was given, or the default."""
        return self._settings.scaling

    @property
    def validation_config(self) -> ValidationConfig | None:
        """As it was given."""
        return self._settings.validation

    @property
    def backend_config(self) -> TorchConfig:
        """`torch_config`, under Ray Train's name."""
        return self._settings.torch

    @property
    def running_in_local_mode(self) -> bool:
        """Whether the function runs in this very process: num_workers=0."""
        return self._settings.scaling.num_workers == 0

    def fit(self) -> Result:
        """Train to the end. Raises TrainingFailedError with the first cause when the job failed.

        With num_workers=0 the function runs in this very process, and what it raises goes through as it is.

        Ctrl-C (KeyboardInterrupt) stops a job on this machine cleanly; on a cluster the job continues, and a line says
        how to get back to it.
        """
        try:
            return self._fit()
        except BaseException:
            callers_view.prepare()
            raise

    def _fit(self) -> Result:
        if self._backend is None:
            return Fit(self._settings).run()
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
    ) -> Self:
        """The trainer whose job stored in `path` (Result.path, or storage path and name as they were given), to resume
        from its latest checkpoint, where it ran: on this machine, or on the cluster of its backend. Arguments replace
        what was stored; `torch_config` is a TorchTrainer's.

        Unpickles a file of that folder: only for folders of your own. Name, storage and namespace are those of the
        folder. `backend` also says how to reach a bucket where this process's environment does not; it is needed
        where the one before set environment variables, whose values are not stored. Raises LaunchError, also for a run
        that completed: to train on from its checkpoint, give it as `resume_from_checkpoint` to a new trainer.

        ```python
        def half(config):
            return config["whole"] / 2


        trainer = TorchTrainer(half, train_loop_config={"whole": "one"}, run_config=RunConfig(verbose=0))
        try:
            result = trainer.fit()
        except TrainingFailedError as error:  # TypeError: a text has no half
            result = error.result
        if TorchTrainer.can_restore(result.path):
            result = TorchTrainer.restore(result.path, train_loop_config={"whole": 1}).fit()
        ```
        """
        before, name, storage, namespace = _before(path, backend, cls.__name__)
        return cls(
            train_loop_per_worker or before.loop,
            train_loop_config=before.config if train_loop_config is None else train_loop_config,
            scaling_config=scaling_config or before.scaling,
            run_config=replace(run_config or before.run, name=name, storage_path=storage),
            datasets=datasets,
            validation_config=before.validation,
            backend=_in_namespace(backend or before.backend, namespace),
            **cls._of_torch(torch_config or before.torch),
        )

    @classmethod
    def _of_torch(cls, config: TorchConfig) -> dict[str, Any]:
        """The argument for it, where the class has it."""
        return {}

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], *, backend: Kubernetes | None = None) -> bool:
        """Whether a trainer ran in that folder; `backend` as for restore()."""
        return stored.found(path, _reached(backend)) is not None


@told_of(WAYS_OUT)
class TorchTrainer(DataParallelTrainer):
    """Distributed PyTorch training of a function, with recovery: on this machine, or with `backend` on a cluster.

    A DataParallelTrainer with torch's process group, which is up when the function begins.

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

    _FRAMEWORK = payload.TORCH
    _DATA = (
        "there is no Ray Data here: make the dataset in the training function and use "
        "trainjob.torch.prepare_data_loader"
    )

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
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            scaling_config=scaling_config,
            run_config=run_config,
            resume_from_checkpoint=resume_from_checkpoint,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            backend=backend,
        )
        self._settings = replace(self._settings, torch=_of(TorchConfig, "torch_config", torch_config))

    @classmethod
    def _of_torch(cls, config: TorchConfig) -> dict[str, Any]:
        return {"torch_config": config}


def _before(path: str | os.PathLike[str], backend: Kubernetes | None, trainer: str) -> tuple[Settings, str, str, str]:
    """What a trainer left there, and its name, storage and namespace. `trainer`: the class that is to continue. Raises
    LaunchError.
    """
    reached = _reached(backend)
    folder = stored.found(path, reached)
    if folder is None:
        raise LaunchError(
            f"{os.fspath(path)} cannot be restored: it holds no {stored.TRAINER_FILE} of a {trainer}. Give the "
            f"Result.path of a run, <storage path>/{jobs.LOCAL_NAMESPACE}/<name>; a run on a cluster whose storage "
            "this machine does not see resumes where its script is run again with the same name"
        )
    if stored.completed(folder, reached):
        raise LaunchError(
            f"the run in {folder} completed: there is nothing to restore. To train on, give its checkpoint as "
            f"resume_from_checkpoint to a new {trainer}"
        )
    before = stored.load(folder, reached)
    if before.withheld and backend is None:
        raise LaunchError(
            f"the run in {folder} gave its pods the environment variables {', '.join(before.withheld)}, whose "
            "values are not kept beside the checkpoints: give restore() the backend=trainjob.Kubernetes(...) again"
        )
    above, name = os.path.split(folder)
    storage, namespace = os.path.split(above)
    return before, name, storage, namespace


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

    if not isinstance(given, Kubernetes):
        raise ConfigError("backend", given, 'give trainjob.Kubernetes(image="..."), or leave it out for this machine')
    return given


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
