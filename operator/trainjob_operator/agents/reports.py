"""Reads an agent's report: untrusted text in, a checked and bounded `AgentView` out.

Called by the coordinator with a request's body. What is too long is cut, what is not finite is dropped, what is of the
wrong kind is refused with one sentence. Nothing from a pod reaches status without passing here. The fields are in
`report_fields.py`, the tables in `report_tables.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, ValidationError

from trainjob_api import contract, last_word
from trainjob_api.contract import BeginReport, CheckpointReport, EffortReport, ForksReport, ProgressReport, RankReport
from trainjob_operator.agents.report_fields import (
    PEERS_LIMIT,
    RANKS_LIMIT,
    Count,
    Instant,
    Message,
    Name,
    Path,
    Seconds,
    Word,
    clean,
    first,
    instruction,
)
from trainjob_operator.agents.report_tables import (
    BeginTable,
    CheckpointTable,
    EffortTable,
    ForksTable,
    HangTable,
    ProgressTable,
    RankTable,
    StacksTable,
    StragglersTable,
    Table,
)
from trainjob_operator.core.model import AgentView


class BadReport(Exception):
    """The body is no report; str() says in one sentence what is wrong."""


@dataclass(frozen=True, slots=True)
class Asker:
    """What is kept of a report while its poll is open: who asks, and what it knows already."""

    key: tuple[str, str]
    job_uid: str
    slot: int
    pod_uid: str
    acknowledged: Mapping[str, Any] | None
    last: bool
    """It ends, and came only to say its last word."""


class Report(Table):
    """One `contract.AgentReport`, checked."""

    namespace: Name
    job: Name
    job_uid: Name
    slot: Count
    pod: Word = ""
    pod_uid: Name
    boot: Count
    seq: Count
    clock: Instant = None
    address: Word = ""
    acknowledged: Annotated[dict[str, Any] | None, BeforeValidator(instruction)] = None
    attempt: Count = 0
    quiet: bool = True
    joined: bool = False
    ranks: Annotated[list[RankTable], first(RANKS_LIMIT)] = Field(default_factory=list)
    begin: BeginTable | None = None
    forks: ForksTable | None = None
    hang: HangTable | None = None
    stragglers: StragglersTable | None = None
    stacks: StacksTable | None = None
    lost_peers: Annotated[list[Count], first(PEERS_LIMIT)] = Field(default_factory=list)
    unreached_s: Seconds = 0.0
    boundary: Word | None = None
    draining: bool = False
    last: bool = False
    warming: bool = False
    uploads: Count = 0
    completed: bool = False
    checked: Count | None = None
    run: Count | None = None
    resumed_from: Path | None = None
    progress: ProgressTable | None = None
    effort: EffortTable | None = None
    latest: CheckpointTable | None = None
    best: CheckpointTable | None = None
    checkpoint_count: Count = 0
    warning: Message | None = None
    checkpoint_trouble: Message | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name) of the job."""
        return self.namespace, self.job

    @property
    def has_broken_ranks(self) -> bool:
        """Whether a rank ended here other than well or because it was stopped."""
        return any(
            rank.state == contract.RANK_ENDED and rank.kind not in (contract.END_OK, contract.END_STOPPED)
            for rank in self.ranks
        )

    @property
    def order(self) -> tuple[int, int]:
        """(boot, seq): a lower one is older."""
        return self.boot, self.seq

    def asker(self) -> Asker:
        """Without what is large."""
        return Asker(self.key, self.job_uid, self.slot, self.pod_uid, self.acknowledged, self.last)

    def view(self, now: datetime) -> AgentView:
        """What the rules see of it."""
        return AgentView(
            slot=self.slot,
            pod_uid=self.pod_uid,
            boot=self.boot,
            heard_at=now,
            address=self.address,
            clock_offset=timedelta(seconds=now.timestamp() - self.clock) if self.clock is not None else timedelta(0),
            attempt=self.attempt,
            quiet=self.quiet,
            joined=self.joined,
            ranks=tuple(cast(RankReport, rank.told()) for rank in self.ranks),
            begin=cast(BeginReport, self.begin.told()) if self.begin else None,
            forks=cast(ForksReport, self.forks.model_dump()) if self.forks else None,
            hang=self.hang.report(now) if self.hang else None,
            stragglers=self.stragglers.report(now) if self.stragglers else None,
            stacks=self.stacks.report() if self.stacks else None,
            lost_peers=tuple(self.lost_peers),
            unreached_s=self.unreached_s,
            boundary=self.boundary,
            draining=self.draining,
            warming=self.warming,
            uploads=self.uploads,
            completed=self.completed,
            checked=self.checked,
            run=self.run,
            resumed_from=self.resumed_from,
            progress=cast(ProgressReport, self.progress.told()) if self.progress else None,
            effort=cast(EffortReport, self.effort.told()) if self.effort else None,
            latest=cast(CheckpointReport, self.latest.told()) if self.latest else None,
            best=cast(CheckpointReport, self.best.told()) if self.best else None,
            checkpoint_count=self.checkpoint_count,
            warning=self.warning,
            checkpoint_trouble=self.checkpoint_trouble,
        )


def parse_report(body: bytes) -> Report:
    """The report in a request's body. Raises BadReport."""
    try:
        document = json.loads(body)
    except RecursionError:
        raise BadReport("the body is nested too deeply for a report") from None
    except ValueError as error:
        raise BadReport(f"the body is not JSON: {error}"[: contract.MESSAGE_LIMIT]) from None
    return read_report(document)


def read_report(document: Any) -> Report:
    """The report in a parsed body. Raises BadReport. What is shown of a complete run may be another version's, from its
    end record, and make no sense here: that it is complete does.
    """
    if not isinstance(document, dict):
        raise BadReport("the body must be a JSON object: an agent's report")
    if document.get("completed") is True:
        with suppress(ValidationError):
            return Report.model_validate(document)
        document = {name: value for name, value in document.items() if name not in last_word.SHOWN}
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(clean(str(step), 64) for step in first["loc"])
        raise BadReport(f"field {where}: {first['msg']}") from None
