"""The processes below an agent are found from it downwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.agent.processes import strays

HEAD = """
import json, os, signal, subprocess, sys, time
from trainjob.agent.processes import family, trackers
LEAVES_CHILDREN = '''
import subprocess, sys
start = lambda apart, *words: subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60)", *words], start_new_session=apart, stdout=subprocess.DEVNULL
).pid
print(start(True), start(False), start(False, "resource_tracker import main"), flush=True)
'''
def orphans():
    "The group of a process that is gone, and what it left: one with a session of its own, one of the group, a tracker."
    parent = subprocess.Popen([sys.executable, "-c", LEAVES_CHILDREN], stdout=subprocess.PIPE, start_new_session=True)
    left = [int(pid) for pid in parent.stdout.readline().split()]
    parent.wait()
    return parent.pid, left
def end(*pids):
    for pid in pids:
        os.kill(pid, 9)
def lives(pid):
    return os.waitpid(pid, os.WNOHANG) == (0, 0)
seen = []
sys.addaudithook(lambda event, values: seen.append(values[0]) if event == "os.listdir" else None)
"""


def told(script: str) -> Any:
    ran = subprocess.run([sys.executable, "-c", HEAD + script], capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    return json.loads(ran.stdout)


def test_orphans_and_their_children_are_found_and_others_are_not_looked_at() -> None:
    found = told(
        "family.adopt()\n_, left = orphans()\nown = subprocess.Popen(['sleep', '60'])\nfound = family.below()\n"
        "print(json.dumps([sorted(found) == sorted([*left, own.pid]), '/proc' in seen]))\nend(*left, own.pid)\n"
    )
    assert found == [True, False]


def test_of_a_group_what_its_leader_left_is_killed_and_a_tracker_is_spared() -> None:
    found = told(
        "family.adopt()\ngroup, left = orphans()\nkilled = trackers.kill_others(group)\nos.waitpid(left[1], 0)\n"
        "print(json.dumps([killed, lives(left[0]), lives(left[2]), '/proc' in seen]))\nend(left[0], left[2])\n"
    )
    assert found == [True, True, True, False]


LEAVES_ITS_GROUP = """
import os, subprocess, sys, time
tracker = ["-c", "import time; time.sleep(60)", "resource_tracker " + "import main"]
subprocess.Popen([sys.executable, *tracker], stdout=subprocess.DEVNULL)
group = os.getpgid(0)
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, group)
        print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_of_a_group_what_one_that_left_it_has_started_is_killed_too() -> None:
    found = told(
        f"family.adopt()\nwords = [sys.executable, '-c', {LEAVES_ITS_GROUP!r}]\n"
        "leader = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)\n"
        "hidden = int(leader.stdout.readline())\nkilled = trackers.kill_others(leader.pid)\nleader.wait()\n"
        "state = lambda: open(f'/proc/{hidden}/stat').read().rpartition(')')[2].split()[0]\nuntil = time.monotonic() + 20\n"
        "while state() not in 'ZX' and time.monotonic() < until: time.sleep(0.01)\n"
        "print(json.dumps([killed, state()]))\nend(*family.below())\n"
    )
    assert found == [True, "Z"]


def test_where_orphans_go_elsewhere_all_processes_are_looked_at() -> None:
    found = told(
        "own = subprocess.Popen(['sleep', '60'])\nfound = family.below()\n"
        "print(json.dumps([{own.pid, os.getppid()} <= {*found}, '/proc' in seen]))\nown.kill()\n"
    )
    assert found == [True, True]


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time between two looks."""
    monkeypatch.setattr(strays, "WAIT_S", HANG_S)
    monkeypatch.setattr(strays, "UNCLEAR_S", HANG_S)


@pytest.mark.usefixtures("no_clock")
def test_a_stray_that_the_first_look_misses_is_killed_all_the_same() -> None:
    with subprocess.Popen(["sleep", "60"]) as missed:
        looks = iter(map(strays.Look, [[], [missed.pid], [], []]))
        assert strays.end_found(lambda: next(looks)) == [missed.pid] and next(looks, "all were made") == "all were made"
        assert missed.wait() == -signal.SIGKILL


@pytest.mark.usefixtures("no_clock")
def test_a_process_that_is_being_executed_is_looked_at_again_until_it_is_known() -> None:
    with subprocess.Popen(["sleep", "60"]) as unknown:
        unclear = strays.Look([], is_clear=False)
        looks = iter([strays.Look([]), unclear, unclear, strays.Look([unknown.pid]), strays.Look([]), strays.Look([])])
        assert strays.end_found(lambda: next(looks)) == [unknown.pid] and next(looks, "all made") == "all made"
        assert unknown.wait() == -signal.SIGKILL


def test_where_nothing_is_left_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(strays.time, "sleep", waits.append)
    assert strays.end_found(lambda: strays.Look([])) == [] and not waits


def test_one_that_shows_nobody_what_it_is_holds_up_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(number / 10 for number in range(100))
    monkeypatch.setattr(strays.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(strays.time, "sleep", lambda seconds: None)
    assert strays.end_found(lambda: strays.Look([], is_clear=False)) == []
    assert next(clock) < 1
