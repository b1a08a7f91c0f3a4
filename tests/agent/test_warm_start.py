"""What is in the way of the warm parent for a moment costs no warm start; what is for good is said, and ranks start
plainly.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import OnEnd, Reaper
from trainjob.agent.processes.starter import FORK_TRIES
from trainjob.agent.warm import choice, learning, starter
from trainjob.agent.warm.starter import WarmStarter
from trainjob_api import contract


class Noting(Reaper):
    """Notes that all children were reaped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.gone = asyncio.Event()
        self._left = 0

    def watch(self, pid: int, on_end: OnEnd, *, group: bool) -> None:
        def ended(status: int) -> None:
            on_end(status)
            self._left -= 1
            if not self._left:
                self.gone.set()

        self._left += 1
        self.gone.clear()
        super().watch(pid, ended, group=group)


def fail(monkeypatch: pytest.MonkeyPatch, *errors: int) -> None:
    """The next forks of this process end so."""
    left, real = list(errors), subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute(*arguments: Any, **fields: Any) -> Any:
        if left:
            number = left.pop(0)
            raise OSError(number, os.strerror(number))
        return real(*arguments, **fields)

    monkeypatch.setattr(subprocess.Popen, "_execute_child", execute)


def begun(folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], *errors: int) -> tuple[bool, list[str]]:
    """Whether a starter has a parent after begin(), of which the first forks fail with these, and what it says."""
    said: list[str] = []
    fail(monkeypatch, *errors)

    async def scene() -> bool:
        console = Console(os.open(os.devnull, os.O_WRONLY))
        console.say = said.append  # type: ignore[method-assign]
        reaper, log = Noting(asyncio.get_running_loop()), str(folder / "logs" / "warm.log")
        starter = WarmStarter(reaper, console, words, 1, contract.PREFORK_ALWAYS, ["decimal"], log)
        starter.begin()
        parent = starter.parent
        starter.close()
        if parent is not None:
            await asyncio.wait_for(reaper.gone.wait(), HANG_S)
        console.close(1)
        return parent is not None

    return asyncio.run(scene()), said


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_limit_of_processes_that_is_reached_for_a_moment_does_not_keep_the_parent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    words = [sys.executable, "-m", "json.tool"]
    assert begun(tmp_path, monkeypatch, words, *[number] * (FORK_TRIES - 1)) == (True, [])
    there, said = begun(tmp_path, monkeypatch, words, *[number] * FORK_TRIES)
    assert not there and len(said) == 1 and os.strerror(number) in said[0], said


def test_an_interpreter_that_cannot_be_executed_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python3"
    program.write_bytes(b"\x7fELF is what it says it is")
    program.chmod(0o755)
    there, said = begun(tmp_path, monkeypatch, [str(program), "-m", "json.tool"])
    assert not there and len(said) == 1 and "cannot be " in said[0], said


def learns(folder: Path, monkeypatch: pytest.MonkeyPatch, packages: list[str], *errors: int) -> tuple[bool, list[str]]:
    """Whether the parent that was begun lives once the agent has said something, and what. The script's first rank has
    listed `packages`; the first forks of a parent that imports them fail with `errors`.
    """
    monkeypatch.chdir(folder)
    Path("train.py").write_text("")
    said: list[str] = []
    spoke = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        spoke.set()

    async def scene() -> bool:
        console = Console(os.open(os.devnull, os.O_WRONLY))
        console.say = say  # type: ignore[method-assign]
        reaper, words = Noting(asyncio.get_running_loop()), [sys.executable, "train.py"]
        log, listed = str(folder / "logs" / "warm.log"), folder / "imported.json"
        starter = WarmStarter(reaper, console, words, 1, contract.PREFORK_ALWAYS, None, log, str(listed))
        starter.begin()
        parent = starter.parent
        assert parent is not None and await asyncio.wait_for(parent.ready, HANG_S)
        listed.write_text(json.dumps([*(f"no{number}" for number in range(learning.LEAST)), *packages]))
        fail(monkeypatch, *errors)
        starter.learn()
        await asyncio.wait_for(spoke.wait(), HANG_S)
        lives = starter.parent is parent and parent.lives
        starter.close()
        parent.close()
        await asyncio.wait_for(reaper.gone.wait(), HANG_S)
        console.close(1)
        return lives

    return asyncio.run(scene()), said


def test_a_parent_that_cannot_be_started_to_learn_costs_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives, said = learns(tmp_path, monkeypatch, [], *[errno.EAGAIN] * FORK_TRIES)
    assert lives and len(said) == 1 and os.strerror(errno.EAGAIN) in said[0], said


def test_an_import_that_hangs_ends_the_learning_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "env" / "site-packages"
    site.mkdir(parents=True)
    (site / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))
    monkeypatch.setattr(learning, "LEARN_S", 1.0)
    lives, said = learns(tmp_path, monkeypatch, ["hangs"])
    assert lives and len(said) == 1 and "after 1 s" in said[0], said


def test_what_others_could_import_and_hangs_here_costs_no_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent that is begun with it is waited for once; another one is without."""
    site = tmp_path / "env" / "site-packages"
    site.mkdir(parents=True)
    (site / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))
    monkeypatch.setattr(starter, "PATIENCE_S", 1.0)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    kept = tmp_path / contract.LEARNED
    kept.write_text(json.dumps(["hangs"]))
    said: list[str] = []

    async def scene() -> tuple[bool, bool]:
        console, warm = Console(os.open(os.devnull, os.O_WRONLY)), asyncio.Event()
        console.say = said.append  # type: ignore[method-assign]
        reaper, words = Noting(asyncio.get_running_loop()), [sys.executable, "train.py"]
        log, listed = str(tmp_path / "logs" / "warm.log"), str(tmp_path / "imported.json")
        of_it = WarmStarter(
            reaper, console, words, 1, contract.PREFORK_ALWAYS, None, log, listed, on_warm=warm.set
        )  # fmt: skip
        of_it.begin()
        first = of_it.parent
        assert first is not None and first.learns
        ready = await asyncio.wait_for(first.ready, HANG_S)
        second = of_it.parent
        assert second is not None and second is not first
        found = ready, await asyncio.wait_for(second.ready, HANG_S)
        of_it.close()
        await asyncio.wait_for(reaper.gone.wait(), HANG_S)
        console.close(1)
        return found

    assert asyncio.run(scene()) == (False, True)
    assert said == ["what was learned is not imported ahead: the imports are not done after 1 s"]
    assert not kept.exists(), "nor does the agent that comes after this one try it again"


def test_a_script_that_comes_or_changes_later_gets_a_parent_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choice, "TORCH", ("decimal",))

    async def scene() -> list[tuple[str, ...] | None]:
        found: list[tuple[str, ...] | None] = []
        console = Console(os.open(os.devnull, os.O_WRONLY))
        reaper, words = Noting(asyncio.get_running_loop()), [sys.executable, "train.py"]
        starter = WarmStarter(reaper, console, words, 1, contract.PREFORK_AUTO, None, str(tmp_path / "warm.log"))
        starter.begin()
        for text in ("", "print()", "import torch", "import torch\nsys.path.insert(0, 'x')"):
            if text:
                (tmp_path / "train.py").write_text(text)
            starter.expect(1, 1)
            await starter.prepare(1)
            found.append(None if starter.parent is None else tuple(starter.parent.modules))
        starter.close()
        await asyncio.wait_for(reaper.gone.wait(), HANG_S)
        console.close(1)
        return found

    none, nothing, *torch = asyncio.run(scene())
    assert none is None and nothing is not None and "decimal" not in nothing
    assert all(modules is not None and "decimal" in modules for modules in torch)
