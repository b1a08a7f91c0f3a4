"""TrainJobs in the states that the command line shows, built from their JSON so that tests read like a manifest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

START = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
NOW = START.timestamp()


def causes() -> set[str]:
    """Why an attempt can end; the contract lists them before the reasons of beginnings and of conditions."""
    names = [name for name in vars(contract) if name.startswith("REASON_")]
    return {getattr(contract, name) for name in names[: names.index("REASON_STARTED")]}


def at(seconds: float) -> str:
    """A time that many seconds after the start, as JSON has it."""
    return (START + timedelta(seconds=seconds)).isoformat()


def job(status: dict[str, Any] | None = None, **spec: Any) -> TrainJob:
    """A job named digits with two workers and this status (camelCase, as the API serves it)."""
    template = {"spec": {"containers": [{"name": "trainer", "image": "none", "command": ["python", "train.py"]}]}}
    document = {
        "metadata": {"name": "digits"},
        "spec": {"workers": 2, "template": template, **spec},
        "status": status or {},
    }
    return TrainJob.model_validate(document)


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """One condition."""
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(0)}


def attempt(number: int = 1, **more: Any) -> dict[str, Any]:
    """A running attempt of two ranks."""
    base = {
        "number": number,
        "state": "Running",
        "startedAt": at(0),
        "members": "0-1",
        "workers": 2,
        "worldSize": 2,
        "cause": "Started",
    }
    return {**base, **more}


def failure(**more: Any) -> dict[str, Any]:
    """Rank 1 raised an exception in attempt 1."""
    base = {
        "attempt": 1,
        "time": at(5),
        "reason": "UserCodeError",
        "rank": 1,
        "pod": "digits-1",
        "exitCode": 1,
        "message": "rank 1 on digits-1 raised ValueError: bad batch",
        "traceback": 'Traceback (most recent call last):\n  File "/w/train.py", line 80, in <module>\n    train()\n  '
        'File "/w/train.py", line 61, in train\n    raise ValueError("bad batch")\nValueError: bad batch',
        "victims": 1,
    }
    return {**base, **more}


def progress(step: int = 180, seconds: float = 4, **more: Any) -> dict[str, Any]:
    """A report at that step of 450."""
    base = {
        "position": step // 45,
        "step": step,
        "totalSteps": 450,
        "lastReportTime": at(seconds),
        "metrics": {"loss": 0.11, "accuracy": 0.975},
    }
    return {**base, **more}


def checkpoint(id_: str = "1-1-4", step: int = 180, seconds: float = 4) -> dict[str, Any]:
    """The newest checkpoint."""
    return {"latest": {"id": id_, "step": step, "time": at(seconds), "bytes": 2048}, "count": 4}
