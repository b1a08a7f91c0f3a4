"""The tables of an agent's report (a rank, a hang, progress, a checkpoint, ...), each checked and bounded.

Used by `reports.py`, which has the report itself. What is of the wrong kind makes the whole report unreadable; what is
merely too much is cut (`report_fields.py`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field

from trainjob_api import contract
from trainjob_api.contract import HangReport, StacksReport, StragglerReport, StragglersReport
from trainjob_operator.agents.report_fields import (
    Code,
    Count,
    Instant,
    Length,
    Message,
    Metrics,
    Modules,
    Number,
    Path,
    Share,
    Stacks,
    Word,
    first,
    text_of,
)


class Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    def told(self) -> dict[str, Any]:
        """Fields that are there."""
        return self.model_dump(exclude_none=True)


class ErrorTable(Table):
    type: Word = ""
    message: Message = ""
    traceback: Annotated[str, text_of(contract.TRACEBACK_LIMIT, tail=True)] = ""
    communication: bool = False


class RankTable(Table):
    rank: Count
    local_rank: Count = 0
    pid: Count = 0
    state: Word = contract.RANK_STARTING
    kind: Word | None = None
    exit_code: Code | None = None
    signal: Code | None = None
    raised_at: Instant = None
    ended_at: Instant = None
    error: ErrorTable | None = None


class BeginTable(Table):
    heard: Instant = Field(None, alias="told")
    stopped: Number = None
    joined: Number = None
    forked: Number = None
    group: Number = None
    restored: Number = None
    first_step: Number = None

    def told(self) -> dict[str, Any]:
        """Without lengths that no clock measures."""
        return {name: value for name, value in self.model_dump(exclude_none=True, by_alias=True).items() if value >= 0}


class ForksTable(Table):
    ranks: Count = 0
    why: Message | None = None
    learned: Annotated[list[Word], first(contract.LEARNED_LIMIT)] = Field(default_factory=list)
    modules: Modules = ""


class EffortTable(Table):
    saved: Number = None
    checkpoint: Number = None
    stalled: Number = None
    idle: Number = None


class HangTable(Table):
    since: Instant = None
    ranks: Annotated[list[Count], first(contract.HANG_RANKS_LIMIT)] = Field(default_factory=list)
    message: Message = ""
    stacks: Stacks = ""
    early: bool = False

    def report(self, now: datetime) -> HangReport:
        """A moment that it does not know is now."""
        since = now.timestamp() if self.since is None else self.since
        return {
            "since": since,
            "ranks": self.ranks,
            "message": self.message,
            "stacks": self.stacks,
            "early": self.early,
        }


class StragglerTable(Table):
    rank: Count
    behind: Share = 0.0
    data: Share = 0.0
    compute: Share = 0.0
    held: Share = 0.0
    wait: Share = 0.0


class StragglersTable(Table):
    since: Instant = None
    message: Message = ""
    ranks: Annotated[list[StragglerTable], first(contract.STRAGGLERS_LIMIT)] = Field(default_factory=list)

    def report(self, now: datetime) -> StragglersReport:
        """A moment that it does not know is now."""
        return {
            "since": now.timestamp() if self.since is None else self.since,
            "message": self.message,
            "ranks": [cast(StragglerReport, each.model_dump()) for each in self.ranks],
        }


class StacksTable(Table):
    request: Annotated[str, text_of(contract.STACKS_REQUEST_LIMIT)] = ""
    stacks: Annotated[str, text_of(contract.ASKED_STACKS_LIMIT)] = ""

    def report(self) -> StacksReport:
        return {"request": self.request, "stacks": self.stacks}


class NonFiniteTable(Table):
    metric: Word
    value: Word
    step: Number = None
    position: Count = 0
    count: Count = 1


class ProgressTable(Table):
    position: Count = 0
    step: Number = None
    total_steps: Number = None
    epoch: Number = None
    metrics: Metrics = Field(default_factory=dict)
    time: Instant = None
    seconds_per_step: Length = None
    non_finite: NonFiniteTable | None = None


class CheckpointTable(Table):
    id: Word
    step: Number = None
    uri: Path | None = None
    time: Instant = None
    bytes: Count = 0
    metrics: Metrics = Field(default_factory=dict)
