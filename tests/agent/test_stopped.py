"""A rank whose process is stopped is told within 6 s, by virtual time; nothing else is."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.tuned_agent import entry
from trainjob.agent.hangs.stopped import AFTER_S, EVERY_S, LATE_S, Stopped
from trainjob_api import contract


def _looks(*states: str | None, every: float = EVERY_S) -> list[tuple[float, str]]:
    """What is said of rank 3, looked at so often, and when."""
    rule, told = Stopped(), []
    for number, state in enumerate(states):
        said = rule.look(number * every, {0: "S", 3: state})
        assert set(said) <= {3}
        told += [(number * every, text) for text in said.values()]
    return told


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_process_is_told_once_and_within_six_seconds(letter: str) -> None:
    ((when, text),) = _looks("S", "R", *[letter] * 60)
    assert when - 2 * EVERY_S <= AFTER_S <= 6 and "is stopped" in text and "for 5 s" in text


def test_that_it_goes_on_is_told_and_another_stop_again() -> None:
    told = [text.partition(" ")[0] for _, text in _looks(*"S" + "T" * 9 + "RS" + "T" * 7)]
    assert told == ["is", "continues,", "is"]


def test_a_look_of_a_tool_and_work_and_an_end_are_nothing() -> None:
    assert _looks(*"STTTTSSTTTTTRDSRSRS" * 3) == []
    assert _looks(*"R" * 99) == _looks(*"D" * 99) == _looks(*"S" * 99) == []
    assert len(_looks(*"T" * 9, None, None)) == 1, "a process that was killed does not continue"


def test_looks_that_come_late_say_nothing() -> None:
    """The agent was stopped for a minute, or the machine slept: the ranks may have been only a moment."""
    rule = Stopped()
    states: dict[int, Any] = {1: "T"}
    assert rule.look(0, states) == {} and rule.look(1, states) == {}
    assert rule.look(61, states) == {} and rule.look(65, states) == {}
    later = [rule.look(65 + second, states) for second in range(1, 7)]
    assert [bool(each) for each in later] == [False] * 4 + [True, False]
    assert LATE_S < 4


def test_who_is_stopped_is_so_until_it_goes_on_is_gone_or_a_debugger_has_it() -> None:
    rule, then = Stopped(), []
    for number, state in enumerate("TTTTTTtTS"):
        rule.look(number, {3: state})
        then.append(rule.since)
    assert then == [{}] * 5 + [{3: 0.0}, {}, {3: 0.0}, {}]


TRAINS = """
import os, time, trainjob
print("pid", os.getpid(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
trainjob.report({})
"""
QUICK = entry(hangs__stopped__EVERY_S=0.1, hangs__stopped__AFTER_S=0.5)


@pytest.mark.slow
def test_a_stopped_rank_is_told_where_it_is_and_so_is_its_going_on(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TRAINS, entry=QUICK) as rig:
        rig.run(1)
        rig.wait_text(1, "pid ")
        pid = rig.pid_of(1)
        os.kill(pid, signal.SIGSTOP)
        try:
            rig.wait_text(1, f"rank 1: its process {pid} is stopped (SIGSTOP, or Ctrl-Z)")
            log = rig.work_dir(1) / "logs" / "rank-1.log"
            rig.wait(lambda: f"kill -CONT {pid}" in log.read_text(), "in its log too")
        finally:
            os.kill(pid, signal.SIGCONT)
        rig.wait_text(1, "continues, after")
        (rig.work / "go").touch()
        rig.wait(lambda: all(each["state"] == contract.RANK_ENDED for each in rig.ranks().values()), "it ends")
        assert "is stopped" not in rig.text(0) and rig.text(1).count("is stopped") == 1
