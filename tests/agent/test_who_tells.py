"""One rank of each agent tells what its script imports, wherever that agent's ranks stand on the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainjob.agent.attempts import forking
from trainjob.agent.attempts.forking import Shape
from trainjob.agent.processes.rank import Rank
from trainjob.agent.processes.rank_command import AttemptPlace
from trainjob_api import contract


@pytest.mark.parametrize("machine_ranks", [True, False])
@pytest.mark.parametrize("index", [0, 1])
def test_the_first_rank_of_each_agent_tells(tmp_path: Path, machine_ranks: bool, index: int) -> None:
    shape = Shape(number=1, index=index, workers=2, processes=2, plain=True)
    config = SimpleNamespace(work_dir=str(tmp_path), machine_ranks=machine_ranks, command=["python", "train.py"])
    started: list[dict[str, str]] = []

    def start(rank: Rank, argv: list[str], env: dict[str, str], log: str, prefix: str) -> None:
        started.append(env)

    group = SimpleNamespace(ranks=forking.new_ranks(shape), start=start)
    shared = AttemptPlace(1, 1, None, "127.0.0.1", 29500, "socket", "stacks", "tmp", "mark", learn="list")
    forking.fork_all(cast(Any, SimpleNamespace(config=config)), cast(Any, group), shape, shared, ["python"])
    assert [env[contract.ENV_LEARN] for env in started] == ["list", ""]
    first = 2 * index if machine_ranks else 0
    assert [env[contract.ENV_LOCAL_RANK] for env in started] == [str(first), str(first + 1)]
