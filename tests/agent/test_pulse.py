"""Who is frozen keeps its connections, and is noticed all the same; who wakes up has lost nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.tuned_agent import entry
from trainjob.agent.wire.pulse import BEAT_S, SILENT_S, Pulse
from trainjob_api import contract

TRAINS = """
import time, trainjob
for i in range(1, 10**6):
    trainjob.report({"i": i}, step=i)
    time.sleep(0.05)
"""
QUICK = entry(wire__pulse__BEAT_S=0.1, wire__pulse__SILENT_S=0.6)
PATIENT = entry(wire__pulse__BEAT_S=0.1, wire__pulse__SILENT_S=3.0)
"""A busy machine does not keep an agent from its beats for so long."""


def step(rig: Rig) -> int:
    """The last one that rank 0's agent told of."""
    return int((rig.report(0).get("progress") or {}).get("step") or 0)


def ticked(pulse: Pulse, until: float) -> Pulse:
    now = 0.0
    while now < until:
        now += BEAT_S
        pulse.tick(now)
    return pulse


def test_silence_is_told_with_its_begin() -> None:
    pulse = ticked(Pulse(0.0), 100.0)
    assert pulse.silent_since(100.0 - SILENT_S) == 100.0 - SILENT_S
    assert pulse.silent_since(100.0 - SILENT_S + 0.001) is None


def test_who_was_frozen_itself_takes_nobody_for_silent() -> None:
    """A whole machine that stops, a process under a debugger: all were silent for us, because we were not there."""
    pulse = ticked(Pulse(0.0), 100.0)
    pulse.tick(3700.0)
    assert pulse.silent_since(99.0) is None
    for beat in range(1, int(SILENT_S / BEAT_S)):
        pulse.tick(3700.0 + beat * BEAT_S)
        assert pulse.silent_since(99.0) is None
    pulse.tick(3700.0 + SILENT_S)
    assert pulse.silent_since(99.0) == 3700.0, "it has had its time since"


def of_all_that_miss(peer: int, rig: Rig, slots: list[int]) -> list[dict[str, Any]]:
    """The reports of these, once each of them misses this one."""
    told = [rig.report(slot) for slot in slots]
    return told if all(report["lost_peers"] == [peer] for report in told) else []


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_agent_is_named_by_others_and_nothing_is_lost_when_it_goes_on(tmp_path: Path, frozen: int) -> None:
    with Rig(tmp_path, script=TRAINS, agents=3, entry=QUICK) as rig:
        rig.run(1)
        rig.wait(lambda: step(rig) >= 3, "it trains")
        pid = rig.agents[frozen].process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            others = [1, 2] if frozen == 0 else [0]
            told = rig.wait(lambda: of_all_that_miss(frozen, rig, others), "it is missed")
            assert all(report["unreached_s"] >= 0.6 for report in told)
        finally:
            os.kill(pid, signal.SIGCONT)
        rig.wait(lambda: all(rig.report(slot)["lost_peers"] == [] for slot in range(3)), "it is there again")
        reached = step(rig)
        rig.wait(lambda: step(rig) > reached + 3, "it trains on")
        assert {rank["state"] for rank in rig.ranks().values()} == {contract.RANK_RUNNING}


def test_agents_that_were_all_frozen_miss_nobody(tmp_path: Path) -> None:
    """A suspended laptop, a paused virtual machine."""
    with Rig(tmp_path, script=TRAINS, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: step(rig) >= 3, "it trains")
        for agent in rig.agents.values():
            os.kill(agent.process.pid, signal.SIGSTOP)
        seen = len(rig.coordinator.log)
        time.sleep(5)  # longer than a silence that counts
        for agent in rig.agents.values():
            os.kill(agent.process.pid, signal.SIGCONT)
        reached = step(rig)
        rig.wait(lambda: step(rig) > reached + 20, "it trains on")
        assert all(report["lost_peers"] == [] for report in rig.coordinator.log[seen:])
