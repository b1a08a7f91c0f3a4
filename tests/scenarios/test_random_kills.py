"""Ranks are killed at random moments; nothing that was acknowledged is lost at its level. A hundred with `make zoo`
(ZOO=all); `make test` strikes fewer, since `agent/test_kills.py` strikes each point once.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from support.faults import Faults
from support.faults.clockwork import Clockwork
from support.patience import HANG_S
from support.scenario import Note, Stage, Told
from trainjob.checkpoint.choice import catalogue
from trainjob.launch.local.backend import LocalEvent
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

pytestmark = pytest.mark.slow

KILLS = 50 if os.environ.get("ZOO") == "all" else 10
"""Of each of the two jobs, which run at the same time."""


class Assault:
    """One job under fire: it counts without end until it has been struck often enough, then it is stopped."""

    def __init__(self, root: Path, mode: str, seed: int) -> None:
        self.stage = Stage(root)
        self.mode = mode
        self.name = f"under-fire-{mode.lower()}"
        plan = Faults(seed).kill().kill().terminate().every(0.0, 0.1).times(KILLS).anywhere(0.1)
        self.killer = Clockwork(plan, str(root.parent / "tmp"), self.name, self._reported)
        self.told: Told | None = None
        self._stopped = False

    def run(self) -> None:
        """Until the last blow and a little training after it."""
        self.killer.start()
        try:
            self.told = self.stage.run(self._job(), self._listen)
        finally:
            self.killer.stop()

    def _job(self) -> TrainJob:
        job = self.stage.job("--steps", "1000000", "--mode", self.mode, "--pause", "0.005", name=self.name)
        policy = job.spec.failure_policy.model_copy(update={"max_failures": -1, "no_progress_attempts": 0})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"failure_policy": policy})})

    def _listen(self, event: LocalEvent) -> None:
        over = not self.killer.is_alive() and self.killer.kills
        if over and not self._stopped and self._reported() > self.killer.kills[-1][0]:
            self._stopped = True
            raise KeyboardInterrupt

    def _reported(self) -> int:
        """The newest attempt of which something was acknowledged. Asked a hundred times a second: only the last
        lines are read.
        """
        return max((newest_saved(path) for path in self.stage.notes.glob("rank-*")), default=0)


def newest_saved(notes: Path) -> int:
    """The attempt of a rank's last acknowledged report; 0 before the first."""
    words = (line.split() for line in reversed(notes.read_text().splitlines()))
    return next((int(attempt) for attempt, what, *_ in words if what == "saved"), 0)


def lost_when_staged(notes: list[Note]) -> list[str]:
    """Where an attempt began before something that any rank had been told is safe from the death of ranks."""
    lost = []
    for start in (note for note in notes if note.what == "start"):
        newest = max((note.step for note in notes if note.what == "saved" and note.attempt < start.attempt), default=-1)
        if start.step < newest + 1:
            lost.append(
                f"attempt {start.attempt} of rank {start.rank} began at {start.step}, although {newest} was "
                "acknowledged"
            )
    return lost


def lost_when_durable(assault: Assault) -> list[str]:
    """Acknowledged steps of a SYNC job without a committed checkpoint of their attempt."""
    store = catalogue.open_store(str(assault.stage.storage / "default" / assault.name))
    stored = {(manifest.id.attempt, manifest.note.step) for manifest in catalogue.list_checkpoints(store)}
    saved = [note for note in assault.stage.read_notes() if note.what == "saved"]
    return [f"step {note.step} of attempt {note.attempt}" for note in saved if (note.attempt, note.step) not in stored]


def test_random_kills_lose_nothing_that_was_acknowledged(stage: Stage) -> None:
    assaults = [
        Assault(stage.root / name, mode, seed)
        for name, mode, seed in (("a", contract.UPLOAD_ASYNC, 1), ("b", contract.UPLOAD_SYNC, 2))
    ]
    for assault in assaults:
        assault.stage.root.mkdir()
    began = time.monotonic()
    threads = [threading.Thread(target=assault.run, daemon=True) for assault in assaults]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    took = time.monotonic() - began
    kills = sum(len(assault.killer.kills) for assault in assaults)
    saved = sum(1 for assault in assaults for note in assault.stage.read_notes() if note.what == "saved")
    lost = [text for assault in assaults for text in lost_when_staged(assault.stage.read_notes())] + lost_when_durable(
        assaults[1]
    )
    print(
        f"kills={kills} acknowledged={saved} lost={len(lost)} seconds={took:.1f} "
        f"attempts={[a.told.attempts if a.told else None for a in assaults]}"
    )
    assert kills == 2 * KILLS
    assert lost == []
    assert all(assault.told is not None and assault.told.attempts > KILLS // 2 for assault in assaults)
