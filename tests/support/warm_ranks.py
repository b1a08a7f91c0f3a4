"""Ranks started as an agent starts them, without an agent: forks of a warm parent, or in new interpreters.

`run_warm(...)` and `run_plain(...)` from tests; `python -m support.warm_ranks` is the process in between, which adopts
and reaps as an agent does.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.patience import HANG_S
from support.ranks import environment

ENV_FIXED = "OF_ALL_RANKS"


@dataclass(frozen=True)
class Started:
    """How a rank ended, and what the agent's side said of its start."""

    status: int
    out: str
    warm: bool
    pid: int


@dataclass(frozen=True)
class Runs:
    """All ranks, in order."""

    ranks: list[Started]
    said: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Children of the process in between that were not reaped at its end."""
    fds: list[int] = field(default_factory=list)
    """Its open descriptors before each round."""
    modules: list[str] = field(default_factory=list)


def run_warm(
    command: Sequence[str],
    cwd: Path,
    *,
    ranks: Sequence[Mapping[str, str]] = ({},),
    preload: Sequence[str] | None = (),
    flags: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    rounds: int = 1,
    then: str = "pass",
    tmp: str = "/tmp",
    learn: str = "",
) -> Runs:
    """Ranks with these variables each run `command` to the end, all at once, `rounds` times after each other. `then`:
    Python that runs in the process in between (with `starter`, and `await`) when all is prepared for a round. `tmp`: TMPDIR of the
    ranks. `learn`: a file where what a script imports is found.
    """
    return _run(command, cwd, "Always", ranks, preload, flags, extra, rounds, then, tmp, learn)


def run_plain(
    command: Sequence[str],
    cwd: Path,
    *,
    ranks: Sequence[Mapping[str, str]] = ({},),
    flags: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> Runs:
    """The same, each in a new interpreter."""
    return _run(command, cwd, "Never", ranks, (), flags, extra, 1, "pass")


def _run(
    command: Sequence[str],
    cwd: Path,
    prefork: str,
    ranks: Sequence[Mapping[str, str]],
    preload: Sequence[str] | None,
    flags: Sequence[str],
    extra: Mapping[str, str] | None,
    rounds: int,
    then: str,
    tmp: str = "/tmp",
    learn: str = "",
) -> Runs:
    wish = {
        "words": [sys.executable, *flags, *command],
        "prefork": prefork,
        "preload": None if preload is None else list(preload),
        "ranks": [dict(each) for each in ranks],
        "rounds": rounds,
        "then": then,
        "tmp": tmp,
        "learn": learn,
    }
    place = cwd / "place of ranks"
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "support.warm_ranks", json.dumps(wish), str(place)],
        env=environment(extra or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return Runs([Started(**each) for each in found.pop("ranks")], **found)


async def _main(wish: dict[str, Any], folder: str) -> dict[str, Any]:
    from trainjob.agent.processes import family, rank_command
    from trainjob.agent.processes.console import Console
    from trainjob.agent.processes.reaper import Reaper
    from trainjob.agent.warm import gates
    from trainjob.agent.warm import starter as of_starter
    from trainjob.agent.warm.starter import WarmStarter
    from trainjob_api import contract

    gates.GATE_S = of_starter.PATIENCE_S = HANG_S  # a busy machine makes no start plain
    family.adopt()
    said: list[str] = []
    console = Console(os.open(os.devnull, os.O_WRONLY))
    console.say = said.append  # type: ignore[method-assign]
    reaper = Reaper(asyncio.get_running_loop())
    words, ranks = wish["words"], wish["ranks"]
    log = os.path.join(folder, "warm.log")
    starter = WarmStarter(reaper, console, words, len(ranks), wish["prefork"], wish["preload"], log, wish["learn"])
    names: dict[str, Any] = {"os": os, "asyncio": asyncio}
    exec("async def then(starter, number):\n" + textwrap.indent(wish["then"], "    "), names)
    then = names["then"]
    starter.begin(wish["tmp"])
    ended: list[dict[str, Any]] = []
    fds: list[int] = []
    modules: list[str] = []
    for number in range(wish["rounds"]):
        starter.expect(len(ranks), len(ranks))
        await starter.prepare(len(ranks))
        await then(starter, number)
        fds.append(len(os.listdir("/proc/self/fd")))
        if starter.parent is not None:
            modules = list(starter.parent.modules)
        argv = rank_command.argv(words)
        env = rank_command.environment_of_all(os.environ, words, len(ranks))
        place = {contract.ENV_AGENT_PID: str(os.getpid()), contract.ENV_ATTEMPT: str(number + 1), "TMPDIR": wish["tmp"]}
        waiting = []
        for at, variables in enumerate(ranks):
            out = io.BytesIO()
            reading, writing = os.pipe()
            forked = starter.forked
            pid = starter.start(argv, {**env, **place, "RANK": str(at), **variables}, writing)
            gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            reaper.watch(pid, gone.set_result, group=True)
            os.close(writing)
            copying = asyncio.get_running_loop().run_in_executor(None, _copy, reading, out)
            waiting.append((pid, gone, out, starter.forked > forked, copying))
        for pid, gone, out, warm, copying in waiting:
            status = await gone
            await copying
            ended.append({"status": status, "out": out.getvalue().decode(), "warm": warm, "pid": pid})
    starter.close()
    left, until = _children(), time.monotonic() + HANG_S / 2
    while left and time.monotonic() < until:
        await asyncio.sleep(0.01)
        left = _children()
    console.close(1)
    return {"ranks": ended, "said": said, "left": left, "fds": fds, "modules": modules}


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()


def _copy(reading: int, out: Any) -> None:
    with open(reading, "rb") as file:
        shutil.copyfileobj(file, out)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(json.loads(sys.argv[1]), sys.argv[2]))))
