"""Random courses of a job: whatever fails, each report reaches each tracker once and in order.

A course is made by its seed alone. Nothing runs beside anything here: a feed's thread is stepped by the test, what
happens while a tracker's call lasts happens within that call, and time passes where somebody pauses.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from trackers.test_turn import Time
from trainjob.checkpoint.errors import UNREADABLE, StoreError
from trainjob.checkpoint.reading import runs
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.launch.handover.callbacks import Report, RunContext
from trainjob.trackers import claim, feed, kinds, process, source
from trainjob.trackers.claim import Mark
from trainjob.trackers.feed import Feed
from trainjob.trackers.process import Feeding
from trainjob.trackers.tracker import Tracker

SEEDS = 40
ROOM = 3
"""Of a tracker's queue."""
PLACES = ("a", "b")


class Killed(BaseException):
    """SIGKILL to the process that feeds the trackers, within a call."""


class Files:
    """A storage, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read(self, key: str) -> bytes | None:
        return self.files.get(key)

    def size(self, key: str) -> int | None:
        return len(self.files[key]) if key in self.files else None

    def names(self, folder: str) -> list[tuple[str, bool]]:
        parts = [key[len(folder) + 1 :].split("/") for key in self.files if key.startswith(folder + "/")]
        return sorted({(part[0], len(part) > 1) for part in parts})

    def create(self, key: str, data: bytes) -> bool:
        return self.files.setdefault(key, data) is data

    def put(self, key: str, data: bytes) -> None:
        self.files[key] = data

    def delete(self, key: str) -> None:
        self.files.pop(key, None)

    def local(self, folder: str) -> str:
        return "/" + folder

    def uri(self, key: str = "") -> str:
        return f"/store/{key}"


class Flaky:
    """That storage, as one process sees it: away for a while, or for a moment."""

    def __init__(self, files: Files, chance: random.Random, often: float) -> None:
        self._files, self._chance, self.often, self.away = files, chance, often, False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._files, name)

        def call(*args: Any) -> Any:
            if self.away or self._chance.random() < self.often:
                raise StoreError(UNREADABLE, "away")
            return real(*args)

        return real if name in ("local", "uri") else call


class ByHand:
    """A feed's thread, which works when it is told to."""

    at_work = 0

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target, self._over = target, False

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return not self._over

    def end(self) -> None:
        self._over = True

    def join(self, timeout: float) -> None:
        if not self._over:
            self._over = True
            ByHand.at_work += 1
            self._target()
            ByHand.at_work -= 1


@dataclass
class Server:
    """What all processes write into."""

    rows: list[Mark] = field(default_factory=list)
    twice: set[Mark] = field(default_factory=set)
    """Of a batch whose end nobody heard of."""
    since: int = 0
    """The first run of the training that it was fed with."""


class Logger(Tracker):
    """Writes to a server that is away at times; `meanwhile` happens while it has not answered yet."""

    def __init__(self, server: Server, where: str, chance: random.Random, often: float, meanwhile: Any) -> None:
        super().__init__(patience_s=1000.0)
        self._server, self._where = server, where
        self._chance, self._often, self._meanwhile = chance, often, meanwhile

    def place(self, run_context: RunContext) -> str:
        return self._where

    def _answers(self) -> None:
        self._meanwhile()
        if self._chance.random() < self._often:
            raise ConnectionError("the server is away")

    def open(self, run_context: RunContext, first: Report) -> None:
        self._answers()

    def restart(self, first: Report) -> None:
        self._answers()

    def write(self, reports: Sequence[Report]) -> None:
        self._answers()
        marks = [source.mark_of(report) for report in reports]
        self._server.rows += marks
        self._meanwhile()


class Course:
    """Of one job."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.files, self.time = Files(), Time()
        self.servers = {place: Server() for place in PLACES}
        self.run, self.attempt, self.position, self.resumed = 0, 0, 0, 0
        self.reported: list[Mark] = []
        """In this run."""
        self.before: list[Mark] = []
        """In those from which it goes on, without what was done again."""
        self.kept: list[Mark] = []
        """The training, as it stands: without what was done again."""
        self.unstored: list[tuple[tuple[int, int], dict[str, Any]]] = []
        self.lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
        self.checkpoints: list[Mark] = []
        self.feeding: Feeding | None = None
        self.store = self._seen()
        self.feeds: list[Feed] = []
        self.leaving: list[tuple[Feeding, int]] = []
        self.cut_off: list[Feed] = []
        """Of processes that live on when another has come in their place."""
        self.depth, self.over = 0, False
        monkeypatch.setattr(feed, "LIMIT", ROOM)
        for tries in ("TRIES_AT_END", "READ_TRIES"):  # what is given up is another test's
            monkeypatch.setattr(feed, tries, 1000)
        monkeypatch.setattr(feed, "threading", SimpleNamespace(Thread=ByHand, Condition=feed.threading.Condition))
        monkeypatch.setattr(feed, "time", SimpleNamespace(monotonic=lambda: self.time.now))
        monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: self.time.now, sleep=self._passes))
        monkeypatch.setattr(process, "Feed", self._fed)
        monkeypatch.setattr(kinds, "_KINDS", {"mlflow": self._logger})

    # -- the job -------------------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        mine = [one for one in self.checkpoints if one.run == self.run]
        resumes = self.chance.choice(mine) if mine else Mark(0, 0, 0)
        self.before = [mark for mark in self.kept if mark <= resumes]
        self.run, self.reported, self.kept = self.run + 1, [], list(self.before)
        self.attempt, self.position = self.chance.choice([0, self.attempt]), resumes.position
        if not resumes.run:
            for server in self.servers.values():
                server.since = 0
        goes_on_from = CheckpointId(*resumes) if resumes.run else None
        self.files.create(
            layout.run_key(self.run), runs.Claim(self.run, "uid", goes_on_from, None, "", "nonce").dumps()
        )
        self.resumed = self.position
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self.attempt += 1
        self.position = self.chance.randint(self.resumed, self.position)
        self.kept = [mark for mark in self.kept if mark.position <= self.position]
        start = {"kind": "start", "position": self.position, "checkpoint": None}
        self.lines[self.run, self.attempt] = [start]

    def report(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.position += 1
            mark = Mark(self.run, self.attempt, self.position)
            id_, saves = CheckpointId(*mark), self.chance.random() < 0.3
            if saves:
                self.checkpoints.append(mark)
            self.reported.append(mark)
            self.kept.append(mark)
            row = {"run": self.run, "attempt": self.attempt, "position": self.position, "metrics": {}}
            rows = [{**row, "kind": "report", "checkpoint": str(id_) if saves else None}]
            if self.chance.random() < 0.2:
                rows.append({**row, "kind": "log", "checkpoint": None})
            self.unstored += [((self.run, self.attempt), one) for one in rows]

    def store_some(self, *, all_: bool = False) -> None:
        """As rank 0's agent does it: in their order, in segments, of which the last one is written again."""
        count = len(self.unstored) if all_ else self.chance.randint(0, len(self.unstored))
        now, self.unstored = self.unstored[:count], self.unstored[count:]
        for place, row in now:
            if row["checkpoint"]:
                self.files.put(layout.manifest_key(CheckpointId.parse(row["checkpoint"])), b"{}")
            rows = self.lines[place]
            rows.append(row)
            last = (len(rows) - 1) // 4
            text = "".join(json.dumps(one) + "\n" for one in rows[4 * last :])
            self.files.put(layout.history_key(*place, last), text.encode())

    # -- who feeds its trackers ----------------------------------------------------------------------------------------

    def _seen(self) -> Flaky:
        often = self.chance.choice([0.0, 0.02, 0.05])
        return Flaky(self.files, random.Random(self.chance.random()), often)

    def _logger(self, where: str) -> Logger:
        chance = random.Random(self.chance.random())
        return Logger(self.servers[where], where, chance, self.chance.choice([0.0, 0.2, 0.5]), self._meanwhile)

    def _fed(self, tracker: Tracker, context: RunContext, attempt: int) -> Feed:
        made = Feed(tracker, context, limits=self.time.limits(), attempt=attempt)
        self.feeds.append(made)
        return made

    def process(self) -> None:
        """Another one, in place of the one before."""
        self.store, self.feeds = self._seen(), []
        context = RunContext(name="job", path="/store", run_config=None, scaling_config=None, store=self.store)  # type: ignore[arg-type]
        words = [f"mlflow={place}" for place in PLACES]
        self.feeding = Feeding(words, context, self.store, self.attempt)  # type: ignore[arg-type]

    def step(self) -> None:
        """What the threads of trackers do: all that waits is tried once."""
        for one in self.feeds:
            # Without a storage nobody knows of another: one that has no turn yet feeds all the same, and may repeat.
            if one._began or not self.store.away:
                self._deliver(one)
            self._note(one)
        if self.cut_off and self.chance.random() < 0.3:
            other = self.chance.choice(self.cut_off)
            try:
                self._deliver(other)
            except Killed:
                self._forgotten([other])
                self.cut_off.remove(other)

    def _deliver(self, one: Feed) -> None:
        if not one.is_alive or not (one._waiting or one._beyond):
            return
        try:
            one._deliver()
        except feed.TurnOver as over:
            one._stop(over)
            one._thread.end()  # type: ignore[attr-defined]
        except Exception:
            pass  # it is tried again

    def _note(self, one: Feed) -> None:
        if one._began:
            self._server(one).since = self._server(one).since or self.run

    def _server(self, one: Feed) -> Server:
        return self.servers[one._recorder.place(one._context)]

    def look(self) -> None:
        assert self.feeding is not None
        self.feeding.look(self.run)

    def _meanwhile(self) -> None:
        """While a tracker's call lasts."""
        if self.depth or self.over:
            return
        self.depth += 1
        try:
            for _ in range(self.chance.randint(0, 3)):
                self.chance.choice([self.report, self.store_some, self.look])()
            if not ByHand.at_work and self.chance.random() < 0.05:
                raise Killed  # else it would be taken for what a library raises
        finally:
            self.depth -= 1

    def _passes(self, seconds: float) -> None:
        self.time.pause(seconds)
        self.step()

    def leave(self, *, job_is_over: bool) -> None:
        assert self.feeding is not None
        self.store.away = False
        if job_is_over:
            self.over, self.store.often = True, 0.0
            self.store_some(all_=True)
        self.feeding.finish(self.run, job_is_over=job_is_over, error=None)
        for one in self.feeds:
            self._note(one)

    def go(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.begin_run()
            for _ in range(self.chance.randint(1, 3)):
                self.process()
                try:
                    for _ in range(self.chance.randint(1, 12)):
                        self._something()
                    how = self.chance.choice(["leaves", "leaves", "is cut off", "leaves late"])
                    if how == "leaves":
                        self.leave(job_is_over=False)
                    else:
                        self._lives_on(how == "is cut off")
                except Killed:
                    self._forgotten(self.feeds)
                if self.chance.random() < 0.6:
                    self.begin_attempt()
            self.store_some(all_=True)
        self.process()
        self.report()
        self.leave(job_is_over=True)

    def _lives_on(self, cut_off: bool) -> None:
        """While another comes in its place: cut off, in the next attempt; else spec.tracking was edited."""
        assert self.feeding is not None
        self._forgotten(self.feeds)
        self.store.away, self.store.often = False, 0.0
        if cut_off:
            self.cut_off += self.feeds
            self.begin_attempt()
        else:
            self.leaving.append((self.feeding, self.run))

    def _leaves(self) -> None:
        if self.leaving:
            feeding, run = self.leaving.pop()
            feeding.finish(run, job_is_over=False, error=None)

    def _forgotten(self, feeds: Sequence[Feed]) -> None:
        """What was recorded, and is not confirmed."""
        for one in feeds:
            known = [claim.load_state(data) for key, data in self.files.files.items() if self._is_state(one, key)]
            last = max((state.mark for state in known if state and state.mark), default=Mark(0, 0, 0))
            self._server(one).twice.update(mark for mark in self._server(one).rows if mark > last)

    def _is_state(self, one: Feed, key: str) -> bool:
        return one._turn is not None and key.startswith(layout.turns_folder(one._turn._tracker)) and "state" in key

    def _something(self) -> None:
        often = [self.report, self.look, self.step] * 2
        self.chance.choice([*often, self.store_some, self._weather, self._leaves])()

    def _weather(self) -> None:
        self.store.away = not self.store.away and self.chance.random() < 0.5


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_report_is_recorded_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(seed, monkeypatch)
    course.go()
    for server in course.servers.values():
        once = list(dict.fromkeys(server.rows))
        again = [mark for n, mark in enumerate(server.rows) if mark in server.rows[:n]]
        assert once == sorted(once), "in order"
        assert set(again) <= server.twice, "once"
        lacks = [mark for mark in [*course.before, *course.reported] if mark.run >= server.since and mark not in once]
        assert not lacks, "all"
