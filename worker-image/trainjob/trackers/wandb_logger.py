"""Reports as rows of a Weights & Biases run."""

from __future__ import annotations

import hashlib
import netrc
import os
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import tracker

_STEP, _ATTEMPT = "trainjob/step", "trainjob/attempt"
_OPENING = threading.Lock()
_OPEN: set[object] = set()
"""Runs of this process that are W&B's now; both for what `_begun` does when one cannot be begun."""


class WandbLogger(tracker.Tracker):
    """Writes each report as a row of a Weights & Biases run, and `train_loop_config` as its config.

    A training has one run there, whichever attempts and starts of the job it takes. W&B replaces no row: steps that are
    done again after a failure are there twice, `trainjob/attempt` tells them apart, and `trainjob/step` is the axis of
    all charts. Needs `pip install wandb`.

    - `project`, `entity`, `group`, `name`: as `wandb.init` has them; `name`: None: the job's.
    - `mode`: `online`, `offline` or `disabled`; None: WANDB_MODE, and without it `offline` where there is no key
      (`wandb sync` brings such runs to a server later).
    - `folder`: where its files are; None: the job's folder, or, where that is not on this machine, ./<name>.
    - `patience_s`: for how long the end of `fit()` waits for it.
    - `arguments`: more of `wandb.init`'s.
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        patience_s: float = 30.0,
        **arguments: Any,
    ) -> None:
        super().__init__(patience_s=patience_s)
        tracker.need("wandb", "wandb")
        self._arguments = {"project": project, "entity": entity, "group": group, "mode": mode, **arguments}
        self._name, self._folder = name, folder
        self._run: Any = None

    def place(self, run_context: RunContext) -> str:
        """The project, and the folder of an offline run."""
        place = f"Weights & Biases, project {self._project()}"
        if self._mode() == "offline":
            place += f" (offline, in {os.path.join(tracker.folder_of(self._folder, run_context, ''), 'wandb')})"
        return place

    def _project(self) -> str:
        return str(self._arguments["project"] or os.environ.get("WANDB_PROJECT") or "uncategorized")

    def _mode(self) -> str | None:
        chosen = self._arguments["mode"] or os.environ.get("WANDB_MODE") or (None if _has_key() else "offline")
        return None if chosen is None else str(chosen)

    def open(self, run_context: RunContext, first: Report) -> None:
        """Goes on with the run of this training."""
        import wandb

        folder = tracker.folder_of(self._folder, run_context, "")
        os.makedirs(folder, exist_ok=True)
        mode = self._mode()
        # This process does not train; and Python's end waits no longer for W&B than that of fit().
        settings = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, finish_timeout=max(self.patience_s, 1.0)
        )
        given = {
            "id": self._id(run_context, first),
            "name": self._name or run_context.name,
            "config": tracker.settings(run_context),
            "settings": settings,
            **self._arguments,
            "mode": mode,
        }
        # A run that the program has of its own stays as it is.
        self._run = _begun({"dir": folder, "resume": "allow", "reinit": "create_new", **given})
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def write(self, reports: Sequence[Report]) -> None:
        """A row each."""
        for report in reports:
            self._run.log(self.row(report))

    def row(self, report: Report) -> dict[str, Any]:
        """What is written of a report."""
        mine = {_STEP: tracker.step_of(report), _ATTEMPT: report.attempt, "epoch": report.epoch}
        return {**{name: value for name, value in mine.items() if value is not None}, **tracker.values(report)}

    def leave(self) -> None:
        """Sends what W&B has of this process."""
        self._finish(0)

    def settle(self, run_context: RunContext, last: Report, error: BaseException | None) -> None:
        """Says how it ended."""
        self.open(run_context, last)
        self.close(error)

    def close(self, error: BaseException | None) -> None:
        """Says how it ended."""
        self._finish(0 if error is None else 255 if isinstance(error, KeyboardInterrupt) else 1)

    def _finish(self, code: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=code)
            _OPEN.discard(self._run)

    def _id(self, run_context: RunContext, report: Report) -> str:
        """The same for all runs and attempts of one training; in one process W&B takes no id twice, also not for
        another project.
        """
        place = f"{tracker.training_of(run_context, report)}#{self._arguments['entity']}/{self._project()}"
        return hashlib.sha256(place.encode()).hexdigest()[:16]


def _begun(given: dict[str, Any]) -> Any:
    """The run of `wandb.init`. W&B keeps the id of one that it could not begin and refuses it from then on, until all
    of it in this process is torn down: which is done where nobody else has a run.
    """
    import wandb

    with _OPENING:
        try:
            run = wandb.init(**given)
        except Exception:
            if wandb.run is None and not _OPEN:
                wandb.teardown()
            raise
        _OPEN.add(run)
        return run


def _has_key() -> bool:
    """Whether W&B would find a key without asking for it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
