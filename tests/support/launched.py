"""A job whose launcher, and with it the operator, is a process of its own: it can be stopped, and killed.

    python -m support.launched < {"job": ..., "environment": ..., "working_dir": ...}

Prints the object as it was last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from support.patience import HANG_S
from trainjob.launch.local.backend import LocalOptions, run_job
from trainjob_api.v1alpha1 import TrainJob


class Launched:
    """One; what it says goes to `log`."""

    def __init__(
        self, job: TrainJob, environment: Mapping[str, str], working_dir: str, log: IO[bytes], group: Path | None = None
    ) -> None:
        """`group`: the folder of a cgroup to put it in."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.launched"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        if group is not None:
            (group / "cgroup.procs").write_text(f"{self.process.pid}\n")
        told = {"job": job.to_json(), "environment": dict(environment), "working_dir": working_dir}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(told).encode())
        self.process.stdin.close()

    def ended(self) -> TrainJob:
        """The object as it was last, once the launcher has ended."""
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        self.process.wait(HANG_S)
        return TrainJob.model_validate(json.loads(text))


if __name__ == "__main__":
    told = json.load(sys.stdin)
    options = LocalOptions(environment=told["environment"], working_dir=told["working_dir"])
    outcome = run_job(
        TrainJob.model_validate(told["job"]),
        options=options,
        listener=lambda event: event.kind != "status" and print(event.text, file=sys.stderr, flush=True),
    )
    print(json.dumps(outcome.job.to_json()))
