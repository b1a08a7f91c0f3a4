"""`tj` before a job's folder that tests fill: on a path, or on a real S3 server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint import Job
from support.cluster_cli import Said
from trainjob.checkpoint.choice.settle import settle
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli.main import main


@dataclass
class Shell:
    """Runs commands in a folder of its own; `storage` is what --storage would be."""

    folder: Path
    storage: str
    job: Job
    capsys: pytest.CaptureFixture[str]

    def tj(self, *words: str) -> Said:
        """Run a command to its end."""
        code = main(list(words))
        shown = self.capsys.readouterr()
        return Said(code, shown.out, shown.err)

    def checkpoints(self, action: str, *words: str) -> Said:
        """Of the job `digits` below the storage."""
        return self.tj("checkpoints", action, "digits", "--storage", self.storage, *words)

    @property
    def uri(self) -> str:
        """The job's folder."""
        return f"{self.storage}/default/digits"

    def run(self, uid: str) -> None:
        """A new run begins."""
        settle(self.job.store, uid, "auto", [])

    def save(self, *ids: str, **fields: Any) -> None:
        """Committed checkpoints; the step is ten times the index."""
        for id_ in ids:
            index = int(id_.rsplit("-", 1)[-1])
            self.job.save(
                id_,
                **{
                    "step": 10 * index,
                    "metrics": {"loss": 1 / index, "val": {"acc": index / 10}},
                    "position": index,
                    **fields,
                },
            )


def shell(folder: Path, storage: str, capsys: pytest.CaptureFixture[str]) -> Shell:
    """With the first run claimed."""
    made = Shell(folder, storage, Job(folder, open_store(f"{storage}/default/digits")), capsys)
    made.run("uid-1")
    return made
