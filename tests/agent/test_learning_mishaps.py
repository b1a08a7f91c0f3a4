"""What goes wrong around what was learned costs neither an attempt nor the forks that are there: files that cannot be
read or taken away, a parent that dies before its turn or comes in a restart, lists that are of no use, little memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support import large_package
from support.patience import HANG_S
from trainjob.agent.processes import memory, rank_command
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import OnEnd, Reaper
from trainjob.agent.warm import gates, learning, starter
from trainjob.agent.warm.parent import WarmParent
from trainjob.agent.warm.starter import WarmStarter
from trainjob_api import contract

pytestmark = pytest.mark.slow

_PR_SET_CHILD_SUBREAPER = 36


class Noting(Reaper):
    """Knows whom it watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.ever: list[int] = []
        self.living: set[int] = set()

    def watch(self, pid: int, on_end: OnEnd, *, group: bool) -> None:
        def ended(status: int) -> None:
            self.living.discard(pid)
            on_end(status)

        self.ever.append(pid)
        self.living.add(pid)
        super().watch(pid, ended, group=group)


class Stage:
    """An agent's part that starts ranks, of a script that does nothing, below a folder with a package `large`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        site = large_package.install(folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))
        self.folder, self.script, self.said = folder, folder / "job" / "train.py", list[str]()
        self.script.parent.mkdir()
        self.script.write_text("")
        monkeypatch.chdir(self.script.parent)
        monkeypatch.setattr(gates, "GATE_S", HANG_S)  # a busy machine makes no start plain
        self.listed, self.kept = folder / contract.IMPORTED, folder / contract.LEARNED
        self.starter: WarmStarter
        self.reaper: Noting

    @asynccontextmanager
    async def open(self) -> AsyncIterator[WarmStarter]:
        """Begun."""
        console, words = Console(os.open(os.devnull, os.O_WRONLY)), [sys.executable, "train.py"]
        console.say = self.said.append  # type: ignore[method-assign]
        self.reaper = Noting(asyncio.get_running_loop())
        log = str(self.folder / "logs" / "warm.log")
        self.starter = WarmStarter(
            self.reaper, console, words, 1, contract.PREFORK_ALWAYS, None, log, str(self.listed)
        )  # fmt: skip
        self.starter.begin()
        try:
            yield self.starter
        finally:
            self.starter.close()
            await self.until(lambda: not self.reaper.living)
            console.close(1)

    async def until(self, condition: Callable[[], object]) -> None:
        """It is so."""
        async with asyncio.timeout(HANG_S):
            while not condition():  # noqa: ASYNC110 - of processes
                await asyncio.sleep(0.01)

    async def first(self) -> WarmParent:
        """The parent that was begun with, as soon as it can be forked."""
        parent = self.starter.parent
        assert parent is not None and await asyncio.wait_for(parent.ready, HANG_S)
        return parent

    def list(self, *names: str) -> None:
        """As a rank does with its first step."""
        self.listed.write_text(json.dumps([*(f"no{number}" for number in range(learning.LEAST)), *names]))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@pytest.fixture
def adopting() -> Iterator[None]:
    """Forks of a warm parent become this process's children, as an agent's do."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.parametrize("text", ["", '["large"', "[" * 100_000, '{"large": 1}', "\x00" * 4096], ids=range(5))
def test_a_list_that_makes_no_sense_is_none(stage: Stage, text: str) -> None:
    stage.kept.write_text(text)

    async def scene() -> tuple[bool, str]:
        async with stage.open() as ranks:
            found = (await stage.first()).learns, ranks.asks
            stage.listed.write_text(text)
            ranks.learn()
            return found

    assert asyncio.run(scene()) == (False, str(stage.listed))
    assert stage.said == [] and not stage.listed.exists()


def test_what_cannot_be_taken_away_ends_no_attempt(stage: Stage) -> None:
    stage.listed.mkdir()

    async def scene() -> bool:
        async with stage.open() as ranks:
            parent = await stage.first()
            ranks.learn()
            return ranks.parent is parent

    assert asyncio.run(scene()) and stage.said == []


def test_a_parent_that_dies_before_its_turn_leaves_the_one_before_it(stage: Stage) -> None:
    async def scene() -> bool:
        async with stage.open() as ranks:
            parent = await stage.first()
            ranks.expect(0, 1)  # an attempt that is joined for long
            stage.list("large")
            ranks.learn()
            (other,) = stage.reaper.living - {parent.pid}
            await stage.until(lambda: ranks.report()["learned"] == ["large"])
            os.kill(other, signal.SIGKILL)
            await stage.until(lambda: other not in stage.reaper.living)
            ranks.expect(0, 1)
            return ranks.parent is parent and parent.lives and ranks.report()["learned"] == [] and not ranks.asks

    assert asyncio.run(scene())
    assert stage.said[1:] == ["what the script imports is not imported ahead: it was killed by signal 9"]


@pytest.mark.usefixtures("adopting")
def test_one_that_comes_in_the_first_moment_of_a_start_has_the_next_ones_forks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made a moment after the start, whoever they are of."""
    stage.script.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(starter, "SPARE_S", 3600.0)
    later: list[Callable[[], object]] = []

    async def scene() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        plain = loop.call_later

        def call_later(delay: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
            if delay == starter.SPARE_S:
                later.append(lambda: callback(*arguments))
            return plain(delay, callback, *arguments)

        monkeypatch.setattr(loop, "call_later", call_later)
        async with stage.open() as ranks:
            parent = await stage.first()
            ranks.expect(1, 1)
            await ranks.prepare(1)
            argv = rank_command.argv([sys.executable, "train.py"])
            output = os.open(os.devnull, os.O_WRONLY)
            environ = rank_command.environment_of_all(os.environ, [sys.executable, "train.py"], 1)
            rank = ranks.start(argv, {**environ, contract.ENV_AGENT_PID: str(os.getpid())}, output)
            os.close(output)
            assert rank in stage.reaper.living, "it is a fork"
            stage.list("large")
            ranks.learn()
            await stage.until(lambda: ranks.parent is not parent)
            (now,) = later
            before = len(stage.reaper.ever)
            now()
            await stage.until(lambda: len(stage.reaper.ever) > before)
            os.kill(rank, signal.SIGKILL)
            return before, len(stage.reaper.ever)

    before, after = asyncio.run(scene())
    assert after == before + 1


def test_what_is_of_no_use_here_is_tried_once(stage: Stage) -> None:
    """No parent takes the place of the first that has no more than it, and what others say again is no news."""

    async def scene() -> tuple[bool, int]:
        async with stage.open() as ranks:
            parent = await stage.first()
            ranks.hear("no.such.module")
            await stage.until(lambda: stage.reaper.living == {parent.pid})
            ranks.hear("no.such.module")
            await stage.until(lambda: stage.reaper.living == {parent.pid})
            return ranks.parent is parent, len(stage.reaper.ever)

    assert asyncio.run(scene()) == (True, 2)
    assert stage.said == [] and not stage.kept.exists()


@pytest.mark.parametrize("by", ["the agent before", "others", "its own rank"])
def test_with_little_memory_nothing_of_it_is_imported(stage: Stage, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    (stage.folder / "proc").mkdir()
    (stage.folder / "proc" / "meminfo").write_text("MemAvailable: 1048576 kB\n")
    monkeypatch.setattr(memory, "ROOT", str(stage.folder))
    if by == "the agent before":
        stage.kept.write_text(json.dumps(["large"]))

    async def scene() -> tuple[bool, int]:
        async with stage.open() as ranks:
            if by == "others":
                ranks.hear("large")
            parent = await stage.first()
            if by == "its own rank":
                stage.list("large")
                ranks.learn()
            assert ranks.parent is parent and not ranks.asks
            return "large" in parent.modules, len(stage.reaper.ever)

    assert asyncio.run(scene()) == (False, 1)
    assert stage.said == [
        "what was learned is not imported ahead: this worker has 1024 MiB of memory left, less than 1536"
    ]
