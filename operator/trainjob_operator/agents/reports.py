"""Reads an agent's report: untrusted text in, a checked and bounded `AgentView` out.

Called by the coordinator with a request's body. What is too long is cut, what is not finite is dropped, what is of the
wrong kind is refused with one sentence. Nothing from a pod reaches status without passing here.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trainjob_api import contract
from trainjob_api.contract import (
    BeginReport,
    CheckpointReport,
    EffortReport,
    ForksReport,
    HangReport,
    ProgressReport,
    RankReport,
    StacksReport,
    StragglerReport,
    StragglersReport,
)
from trainjob_operator.core.model import AgentView

NAME_LIMIT = 253
"""Characters of a name, a UID, an address."""
PATH_LIMIT = 1024
RANKS_LIMIT = 256
"""Ranks of one pod that are read: more than any machine runs."""
PEERS_LIMIT = 10_000
"""Members of an attempt."""
WORD_FIELDS = 32
"""Fields of an instruction that an agent may acknowledge; ours have ten."""
COUNT_LIMIT = 2**53
"""Largest whole number that every JSON reader keeps exactly."""
TIME_LIMIT = 32_503_680_000.0
"""Seconds since the epoch: the year 3000."""
_NUMBERS = (int, float)
_SCALARS = (int, float, type(None))


class BadReport(Exception):
    """The body is no report; str() says in one sentence what is wrong."""


def clean(text: str, limit: int, *, tail: bool = False) -> str:
    """Without control characters (terminal escapes) and broken Unicode, cut to the limit."""
    text = text[-limit:] if tail else text[:limit]
    if text.isprintable():  # as nearly every text of a report is; a look at each character costs more than all else
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else "�" for c in text)


def _text(limit: int, *, tail: bool = False) -> BeforeValidator:
    return BeforeValidator(lambda value: clean(value, limit, tail=tail) if isinstance(value, str) else value)


def _instant(value: Any) -> Any:
    """A time that no calendar holds counts as not given."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return value if 0.0 <= value <= TIME_LIMIT else None
    return value


def _seconds(value: Any) -> Any:
    """A length that no clock measures counts as none."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return float(value) if 0.0 <= value <= TIME_LIMIT else 0.0
    return value


def _share(value: Any) -> Any:
    """0 to 1; what is none counts as nothing."""
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return min(1.0, float(value)) if value >= 0 else 0.0
    return value


def _number(value: Any) -> Any:
    """A whole number that not every JSON reader keeps exactly counts as not given."""
    return None if isinstance(value, int) and abs(value) > COUNT_LIMIT else value


def _metrics(value: Any) -> Any:
    """The first METRICS_LIMIT finite numbers; a whole number that no float holds is none."""
    if not isinstance(value, dict):
        return value
    numbers = {
        k: v
        for k, v in value.items()
        if isinstance(v, _NUMBERS) and not isinstance(v, bool) and -sys.float_info.max <= v <= sys.float_info.max
    }
    return {
        clean(str(name), NAME_LIMIT): float(number) for name, number in list(numbers.items())[: contract.METRICS_LIMIT]
    }


def _first(count: int) -> BeforeValidator:
    """Of a list that is too long, before any of it is looked at."""
    return BeforeValidator(lambda value: value[:count] if isinstance(value, list) else value)


def _word(value: Any) -> Any:
    """An instruction as ours are: short, flat but for the workers that are to go. What is none of them counts as not
    acknowledged.
    """
    if not isinstance(value, dict):
        return value
    tables = [part for part in value.values() if isinstance(part, dict)]
    flat = {name: part for name, part in value.items() if not isinstance(part, dict)}
    good = len(tables) <= 1 and _is_flat(flat, WORD_FIELDS) and all(_is_flat(t, contract.LEAVING_LIMIT) for t in tables)
    return value if good and all(len(name) <= NAME_LIMIT for name in value) else None


def _is_flat(table: dict[str, Any], limit: int) -> bool:
    return len(table) <= limit and all(
        len(name) <= NAME_LIMIT
        and (len(text) <= 2 * contract.MESSAGE_LIMIT if isinstance(text, str) else isinstance(text, _SCALARS))
        for name, text in table.items()
    )


Name = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT, pattern=r"^[\x21-\x7e]+$")]
Word = Annotated[str, _text(NAME_LIMIT)]
Path = Annotated[str, _text(PATH_LIMIT)]
Message = Annotated[str, _text(contract.MESSAGE_LIMIT)]
Stacks = Annotated[str, _text(contract.STACKS_LIMIT)]
Count = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]
Share = Annotated[float, BeforeValidator(_share)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Code = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Instant = Annotated[float | None, BeforeValidator(_instant)]
Number = Annotated[int | None, BeforeValidator(_number)]
"""A user's own count (step, epoch): whatever it is, it must not make the whole report unreadable."""
Metrics = Annotated[dict[str, float], BeforeValidator(_metrics)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    def told(self) -> dict[str, Any]:
        """Fields that are there."""
        return self.model_dump(exclude_none=True)


class _Error(_Part):
    type: Word = ""
    message: Message = ""
    traceback: Annotated[str, _text(contract.TRACEBACK_LIMIT, tail=True)] = ""
    communication: bool = False


class _Rank(_Part):
    rank: Count
    local_rank: Count = 0
    pid: Count = 0
    state: Word = contract.RANK_STARTING
    kind: Word | None = None
    exit_code: Code | None = None
    signal: Code | None = None
    raised_at: Instant = None
    ended_at: Instant = None
    error: _Error | None = None


class _Begin(_Part):
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


class _Forks(_Part):
    ranks: Count = 0
    why: Message | None = None
    learned: Annotated[list[Word], _first(contract.LEARNED_LIMIT)] = Field(default_factory=list)


class _Effort(_Part):
    saved: Number = None
    checkpoint: Number = None
    stalled: Number = None


class _Hang(_Part):
    since: Instant = None
    ranks: Annotated[list[Count], _first(contract.HANG_RANKS_LIMIT)] = Field(default_factory=list)
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


class _Straggler(_Part):
    rank: Count
    behind: Share = 0.0
    data: Share = 0.0
    compute: Share = 0.0
    held: Share = 0.0
    wait: Share = 0.0


class _Stragglers(_Part):
    since: Instant = None
    message: Message = ""
    ranks: Annotated[list[_Straggler], _first(contract.STRAGGLERS_LIMIT)] = Field(default_factory=list)

    def report(self, now: datetime) -> StragglersReport:
        """A moment that it does not know is now."""
        return {
            "since": now.timestamp() if self.since is None else self.since,
            "message": self.message,
            "ranks": [cast(StragglerReport, each.model_dump()) for each in self.ranks],
        }


class _Stacks(_Part):
    request: Annotated[str, _text(contract.STACKS_REQUEST_LIMIT)] = ""
    stacks: Annotated[str, _text(contract.ASKED_STACKS_LIMIT)] = ""

    def report(self) -> StacksReport:
        return {"request": self.request, "stacks": self.stacks}


class _NonFinite(_Part):
    metric: Word
    value: Word
    step: Number = None
    position: Count = 0
    count: Count = 1


class _Progress(_Part):
    position: Count = 0
    step: Number = None
    total_steps: Number = None
    epoch: Number = None
    metrics: Metrics = Field(default_factory=dict)
    time: Instant = None
    non_finite: _NonFinite | None = None


class _Checkpoint(_Part):
    id: Word
    step: Number = None
    uri: Path | None = None
    time: Instant = None
    bytes: Count = 0
    metrics: Metrics = Field(default_factory=dict)


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


class Report(_Part):
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
    acknowledged: Annotated[dict[str, Any] | None, BeforeValidator(_word)] = None
    attempt: Count = 0
    quiet: bool = True
    joined: bool = False
    ranks: Annotated[list[_Rank], _first(RANKS_LIMIT)] = Field(default_factory=list)
    begin: _Begin | None = None
    forks: _Forks | None = None
    hang: _Hang | None = None
    stragglers: _Stragglers | None = None
    stacks: _Stacks | None = None
    lost_peers: Annotated[list[Count], _first(PEERS_LIMIT)] = Field(default_factory=list)
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
    progress: _Progress | None = None
    effort: _Effort | None = None
    latest: _Checkpoint | None = None
    best: _Checkpoint | None = None
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
    """The report in a parsed body. Raises BadReport."""
    if not isinstance(document, dict):
        raise BadReport("the body must be a JSON object: an agent's report")
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(clean(str(step), 64) for step in first["loc"])
        raise BadReport(f"field {where}: {first['msg']}") from None
