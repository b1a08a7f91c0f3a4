"""What `fit()` leaves in the job's folder so that `TorchTrainer.restore` can continue: the training function and the
settings.

Only `trainer.py` calls this. The file is a pickle: it is read from folders of the user's own alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.opening import open_store
from trainjob.launch import job as jobs
from trainjob.launch.errors import LaunchError
from trainjob.launch.handover.callbacks import RunContext
from trainjob.launch.handover.config import RunConfig, ScalingConfig, TorchConfig
from trainjob.launch.handover.payload import TORCH
from trainjob.launch.handover.validation import ValidationConfig

TRAINER_FILE = "trainer.pkl"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that `fit()` acts on."""

    loop: Callable[..., Any]
    config: Mapping[str, Any] | None
    torch: TorchConfig
    scaling: ScalingConfig
    run: RunConfig
    trainer: str = "TorchTrainer"
    """The name of the class that they are of."""
    framework: str = TORCH
    """What is set up before the function: see `handover.payload`."""
    resume_from: str = "auto"
    validation: ValidationConfig | None = None
    backend: Any = None
    """The Kubernetes(...) that it ran on; None: this machine."""
    withheld: tuple[str, ...] = ()
    """Of what was stored: environment variables of its pods whose values were left out."""

    def context(self, name: str, path: str) -> RunContext:
        """What callbacks are told of the next run, under that name and in that folder."""
        return RunContext(
            name=name,
            path=path,
            run_config=self.run,
            scaling_config=self.scaling,
            train_loop_config=self.config,
            backend_config=self.torch,
        )


Environ = Mapping[str, str] | None
"""By which a bucket is reached; None: this process's environment."""


def found(path: str | os.PathLike[str], environ: Environ = None) -> str | None:
    """The folder in which a trainer left something: `path` itself, or the one of that name as Ray Train has it,
    <storage path>/<name as given>. Raises LaunchError when the storage cannot be asked.
    """
    try:
        places = jobs.folders_of(path)
        return next((place for place in places if open_store(place, environ=environ).size(TRAINER_FILE)), None)
    except StoreError as error:
        raise LaunchError(f"the storage cannot be read: {error}") from error


def store(folder: str, settings: Settings, environ: Environ = None, patience_s: float | None = None) -> None:
    """Leave them in the job's folder. Callbacks stay out: they belong to the launcher's process and often cannot be
    pickled. `patience_s`: for how long a bucket is tried. Raises LaunchError.
    """
    import cloudpickle

    kept = replace(settings, run=replace(settings.run, callbacks=()))
    if jobs.is_s3(folder):
        try:
            open_store(folder, patience_s, environ).put(TRAINER_FILE, cloudpickle.dumps(kept))
        except StoreError as error:
            raise LaunchError(f"the storage cannot be written: {error}") from error
        return
    part = os.path.join(folder, f"{TRAINER_FILE}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            cloudpickle.dump(kept, file)
        os.replace(part, os.path.join(folder, TRAINER_FILE))
    except OSError as error:
        raise LaunchError(
            f"the storage {folder} cannot be written ({error.strerror}): free some space, or give another storage path"
        ) from error


def load(folder: str, environ: Environ = None) -> Settings:
    """Read them back. Raises LaunchError."""
    import cloudpickle

    try:
        found = cloudpickle.loads(open_store(folder, environ=environ).read(TRAINER_FILE) or b"")
    except Exception as error:  # whatever the import of the user's modules raises
        raise LaunchError(
            f"{folder}/{TRAINER_FILE} cannot be read here ({type(error).__name__}: {error}): give restore() the "
            "train_loop_per_worker"
        ) from error
    if not isinstance(found, Settings):
        raise LaunchError(
            f"{folder}/{TRAINER_FILE} was not written by this version of TrainJob: make a new trainer with the same "
            "name"
        )
    return found


def completed(folder: str, environ: Environ = None) -> bool:
    """Whether the newest run has an end record."""
    from trainjob.checkpoint.choice import catalogue

    opened = open_store(folder, environ=environ)
    run = catalogue.latest_run(opened)
    return run is not None and catalogue.read_end(opened, run) is not None
