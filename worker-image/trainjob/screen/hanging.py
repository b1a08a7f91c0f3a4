"""Ranks that hang, or did: as `tj hang` shows them. Pure."""

from __future__ import annotations

import json
from typing import Any

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJobStatus


def hangs_now(status: TrainJobStatus) -> bool:
    """Whether the newest verdict still stands."""
    degraded = status.condition("Degraded")
    return degraded is not None and degraded.status == "True" and degraded.reason == contract.REASON_HANG


def lines(name: str, status: TrainJobStatus) -> list[str]:
    """For people."""
    hang = status.hang
    if hang is None:
        return [f"no rank of {name} was seen to hang"]
    now = hangs_now(status)
    when = f"{hang.since:%Y-%m-%d %H:%M:%S} UTC"
    head = f"{name} hangs since {when}, in attempt {hang.attempt}:" if now else f"{name} does not hang. The last time:"
    of = "" if now else f" (attempt {hang.attempt}, since {when})"
    stacks = ["", *(hang.stacks or "").splitlines()] if hang.stacks else []
    return [head, f"  {hang.message}{of}", *(f"  {line}".rstrip() for line in stacks)]


def shown(name: str, status: TrainJobStatus, output: str | None) -> str:
    """What `tj hang` prints. `output`: json, or None for people."""
    return json.dumps(as_json(status)) if output == "json" else "\n".join(lines(name, status))


def as_json(status: TrainJobStatus) -> dict[str, Any]:
    """For programs: `hangs`, and the newest verdict."""
    return {"hangs": hangs_now(status), "last": None if status.hang is None else status.hang.to_json()}
