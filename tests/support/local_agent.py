"""Jobs of this machine whose agents have other times than usual: how soon the operator answers, say, is often not what
a test looks at, and a busy machine is late.
"""

from __future__ import annotations

import functools
import sys

import pytest

from support.patience import HANG_S
from support.tuned_agent import LOCAL, entry
from trainjob.launch.local import drive
from trainjob_operator.core.model import Installation


def use_agent(monkeypatch: pytest.MonkeyPatch, **times: float) -> None:
    """Pods have an agent with these times, named as `tuned_agent.entry` has them."""
    agent = (sys.executable, *entry(LOCAL, **times))

    def installation(**fields: object) -> Installation:
        return Installation(**{**fields, "agent_command": agent})  # type: ignore[arg-type]

    monkeypatch.setattr(drive, "Installation", functools.wraps(Installation)(installation))


def wait_for_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are kept at a checkpoint, or whose worker is to go, go on once the operator has answered, and by no
    clock.
    """
    use_agent(monkeypatch, barriers__collectives__HOLD_S=HANG_S, draining__ANSWER_S=HANG_S)
