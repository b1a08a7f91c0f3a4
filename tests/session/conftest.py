"""One rank in this process, for the session's calls: connected to a FakeAgent, forgotten after each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.fake_agent import FakeAgent
from trainjob import session
from trainjob.session import calls, link, rank_state
from trainjob_api import contract


@pytest.fixture
def fresh_session(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No worker: none of the agent's names in the environment, no connection."""
    for name in vars(contract):
        if name.startswith("ENV_"):
            monkeypatch.delenv(getattr(contract, name), raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a connection puts a hook of its own before it
    yield
    link.disconnect()
    calls.reset()
    rank_state.clear()
    session.stop_criterion = None


@pytest.fixture
def start_agent(
    fresh_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., FakeAgent]]:
    """`start_agent(world_size=1, rank=0, **options)`: an agent, and this process is the given rank of it."""
    with ExitStack() as stack:

        def start(world_size: int = 1, rank: int = 0, **options: Any) -> FakeAgent:
            agent = stack.enter_context(FakeAgent(tmp_path / "job", world_size, **options))
            for name, value in agent.environ(rank).items():
                monkeypatch.setenv(name, value)
            # As the rank's boot does; without it the connection would hook into pytest's own exceptions.
            monkeypatch.setenv(contract.ENV_RANK_PID, str(os.getpid()))
            return agent

        yield start
        link.disconnect()
