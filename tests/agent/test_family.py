"""The processes below an agent are found from it downwards."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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


def test_where_orphans_go_elsewhere_all_processes_are_looked_at() -> None:
    found = told(
        "own = subprocess.Popen(['sleep', '60'])\nfound = family.below(lambda pid: pid in (own.pid, os.getppid()))\n"
        "print(json.dumps([sorted(found) == sorted([own.pid, os.getppid()]), '/proc' in seen]))\nown.kill()\n"
    )
    assert found == [True, True]
