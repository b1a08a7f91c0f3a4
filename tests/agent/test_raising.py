"""A rank that raises ends, and nobody waits for it; an exception that leaves a call of the library makes no rank wait."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.alarms import ALARMS
from support.tuned_agent import entry
from trainjob_api import contract

pytestmark = pytest.mark.slow

QUICK = entry(processes__ending__ENDING_S=1.0)
"""The agent, soon tired of a rank that has raised."""
HEAD = ALARMS + "import trainjob\nc = trainjob.get_context()\n"


def completed(folder: Path, script: str, rank: int, word: str) -> str:
    """Two ranks of a script come to a good end without a traceback, and one of them prints this; what both printed."""
    with Rig(folder, script=script) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait_text(rank, word)
        said = rig.text(0) + rig.text(1)
    assert "Traceback" not in said
    return said


HANGS = HEAD + (
    "if c.rank == 1:\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
    "    raise ValueError('the data are gone')\ntrainjob.report({})\n"
)


def test_nobody_waits_for_the_end_of_a_rank_that_raised(tmp_path: Path) -> None:
    with Rig(tmp_path, script=HANGS, entry=entry(processes__ending__ENDING_S=10_000.0)) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "the other is told at once")
        assert "rank 1 raised ValueError: the data are gone" in rig.rank(0)["error"]["message"]
        said = rig.wait(lambda: rig.rank(1).get("error"), "rank 1's own word")
        assert said["type"] == "ValueError" and rig.running(1)


def test_a_rank_that_raised_and_does_not_end_is_killed(tmp_path: Path) -> None:
    with Rig(tmp_path, script=HANGS, entry=QUICK) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(1), "killed")
        end = rig.rank(1)
        assert (end["kind"], end["signal"], end["error"]["type"]) == (contract.END_EXCEPTION, 9, "ValueError")
        rig.wait_text(1, "has not ended within 1 s")
        rig.wait(lambda: rig.report(1)["quiet"], "nothing left")


def test_a_rank_behind_a_shell_that_raised_and_does_not_end_is_killed(tmp_path: Path) -> None:
    script = HEAD + "threading.Thread(target=time.sleep, args=(600,)).start()\nraise ValueError('gone')\n"
    command = ["sh", "-c", f"{sys.executable} train.py; exit $?"]
    with Rig(tmp_path, script=script, agents=1, command=command, entry=QUICK) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "killed")
        assert (rig.rank(0)["kind"], rig.rank(0)["exit_code"]) == (contract.END_EXCEPTION, 137)


def test_a_rank_that_became_another_program_tells_what_it_raised(tmp_path: Path) -> None:
    script = (
        "import os, sys\nif 'AGAIN' not in os.environ:\n"
        "    os.execve(sys.executable, [sys.executable, 'train.py'], {**os.environ, 'AGAIN': '1'})\n"
        "import trainjob\ntrainjob.barrier()\nraise ValueError('the data are gone')\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "its end")
        assert (rig.rank(0)["kind"], rig.rank(0)["exit_code"]) == (contract.END_EXCEPTION, 1)
        assert rig.rank(0)["error"]["message"] == "the data are gone"


def test_calls_at_exit_of_a_rank_that_raised_are_refused(tmp_path: Path) -> None:
    script = HEAD + (
        "import atexit\ndef last():\n    try:\n        trainjob.barrier()\n    except trainjob.CollectiveError as error:\n"
        "        print('told:', error, flush=True)\natexit.register(last)\n"
        "if c.rank == 1:\n    raise ValueError('gone')\ntrainjob.report({})\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        rig.wait_text(1, "told: Rank 1 raised ValueError: gone, and makes a call after it")


def test_an_exception_out_of_report_and_another_report_make_nobody_wait(tmp_path: Path) -> None:
    script = HEAD + (
        "if c.rank == 0:\n    alarm_in_a_call()\n    try:\n        trainjob.report({'n': 1})\n"
        "    except Alarm:\n        open('alarmed', 'w').close()\n"
        "    while not os.path.exists('answered'):\n        time.sleep(0.01)\n"
        "else:\n    while not os.path.exists('alarmed'):\n        time.sleep(0.01)\n    trainjob.report({'n': 1})\n"
        "    open('answered', 'w').close()\n"
        "trainjob.report({'n': 2})\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert "An exception (of a signal handler?) left 'report'" in rig.rank(0)["error"]["message"]
        assert rig.rank(1)["error"]["type"].endswith("RankGoneError")


def test_a_call_in_a_signal_handler_in_the_middle_of_another_is_refused(tmp_path: Path) -> None:
    script = HEAD + (
        "def save():\n    trainjob.report({'saved': 1})\n"
        "if c.rank == 0:\n    alarm_in_a_call(then=save)\nelse:\n    time.sleep(600)\ntrainjob.report({})\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert "'report' is called while 'report' of the same thread waits" in rig.rank(0)["error"]["message"]


def test_an_exception_in_the_middle_of_a_frame_leaves_the_connection_usable(tmp_path: Path) -> None:
    """The agent stands still, so that a large frame is sent in part when the handler raises."""
    script = HEAD + (
        "agent = os.getppid()\nos.kill(agent, signal.SIGSTOP)\n"
        "try:\n    alarm_in_a_call('_send', 'line')\n    trainjob.broadcast_from_rank_zero(b'x' * 5_000_000)\nfinally:\n    os.kill(agent, signal.SIGCONT)\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert (rig.rank(0)["kind"], rig.rank(0)["error"]["type"]) == (contract.END_EXCEPTION, "Alarm")


def test_a_program_that_closes_all_descriptors_goes_on_over_new_ones(tmp_path: Path) -> None:
    """os.closerange, as libraries do that make daemons; with and without a file that gets the library's number."""
    script = HEAD + (
        "for i in range(3):\n    trainjob.report({'i': i})\n    os.closerange(3, 256)\n"
        "    files = [open('train.py') for _ in range(20 * i)]\nprint('read', len(files[-1].read()), flush=True)\n"
    )
    completed(tmp_path, script, 1, f"read {len(script)}")


def test_a_socket_that_gets_the_librarys_number_gets_none_of_its_frames(tmp_path: Path) -> None:
    """Such as the process group's. Nor is it closed where a child of the rank lets go of the library's connection."""
    script = HEAD + (
        "import socket\ntrainjob.report({})\nos.closerange(3, 256)\n"
        "pairs = [socket.socketpair() for _ in range(20)]\nchild = os.fork()\nif not child:\n"
        "    os._exit(sum(len(a.send(b'x') and b.recv(1)) != 1 for a, b in pairs))\n"
        "print('not sent', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\ntrainjob.report({})\n"
        "for one in sum(pairs, ()):\n    one.setblocking(False)\n    try:\n        print('got', one.recv(99), flush=True)\n"
        "    except BlockingIOError:\n        pass\n"
    )
    assert "got" not in completed(tmp_path, script, 1, "not sent 0")


def test_a_working_folder_that_is_gone_keeps_nobody_from_resuming(tmp_path: Path) -> None:
    script = HEAD + (
        "import tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nos.rmdir(d)\n"
        "found = trainjob.get_checkpoint()\n"
        "if found is None:\n    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_dict({'step': 7}))\n"
        "    raise ValueError('once')\nprint('step', found.to_dict()['step'], flush=True)\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, attempt=1), "ended")
        rig.run(2)
        rig.wait(rig.completed, "completed")
        rig.wait_text(0, "step 7")


def test_what_a_rank_said_is_heard_whatever_holds_its_streams_open_and_without_waiting(tmp_path: Path) -> None:
    script = HEAD + (
        "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('x' * 40000, flush=True)\nprint('the last line', flush=True)\nraise ValueError('gone ' + 'y' * 900)\n"
    )
    with Rig(tmp_path, script=script, agents=1, entry=entry(processes__ranks__LAST_WORDS_S=0.0)) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert (rig.rank(0)["kind"], rig.rank(0)["error"]["type"]) == (contract.END_EXCEPTION, "ValueError")
        rig.wait_text(0, "the last line")


@pytest.mark.parametrize("way", ["a shell runs two", "one becomes another"])
def test_programs_one_after_the_other_are_one_rank(tmp_path: Path, way: str) -> None:
    """Each counts its calls from 1; the attempt counts on."""
    script = HEAD + "for i in range(3):\n    trainjob.barrier()\nprint('done with', sys.argv[1:], flush=True)\n"
    command = [sys.executable, "train.py"]
    if way == "a shell runs two":
        command = ["sh", "-c", f"{sys.executable} train.py first && {sys.executable} train.py second"]
    else:
        script += "if not sys.argv[1:]:\n    os.execv(sys.executable, [sys.executable, 'train.py', 'second'])\n"
    with Rig(tmp_path, script=script, command=command) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait_text(1, "done with ['second']")


def test_an_exit_code_after_a_refused_call_is_owed_to_the_rank_that_is_gone(tmp_path: Path) -> None:
    script = HEAD + (
        "if c.rank == 1:\n    os._exit(3)\n"
        "try:\n    trainjob.barrier()\nexcept trainjob.RankGoneError:\n    os._exit(1)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        assert [(rig.rank(n)["kind"], rig.rank(n)["exit_code"]) for n in (0, 1)] == [
            (contract.END_EXIT, 1),
            (contract.END_EXIT, 3),
        ]
        assert rig.rank(0)["error"]["communication"] and "rank 1" in rig.rank(0)["error"]["message"]
        assert rig.rank(1)["error"] is None


CLOSE = HEAD + (
    "def close_all():\n    frame, names = None, ()\n    while 'receive' not in names:\n        time.sleep(0.005)\n"
    "        frame, names = sys._current_frames()[threading.main_thread().ident], set()\n"
    "        while frame is not None:\n            names.add(frame.f_code.co_name)\n            frame = frame.f_back\n"
    "    time.sleep(0.1)\n    os.closerange(3, 256)\n    then()\n    open('closed', 'w').close()\n"
    "def when_closed():\n    while not os.path.exists('closed'):\n        time.sleep(0.01)\n"
)
"""`close_all` runs in a second thread, and closes all descriptors while the first one waits for its answer."""


@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "trainjob.log({'x': 1})\n    time.sleep(0.5)",
        "global kept; kept = [open('train.py') for _ in range(20)]",
    ],
    ids=["nothing", "a connection anew", "other files there"],
)
def test_a_wait_goes_on_though_another_thread_closes_all_descriptors(tmp_path: Path, then: str) -> None:
    script = CLOSE + (
        f"def then():\n    {then}\n"
        "if c.rank == 0:\n    threading.Thread(target=close_all).start()\nelse:\n    when_closed()\n"
        "found = trainjob.broadcast_from_rank_zero('a word')\ntrainjob.report({})\nprint('found', found, flush=True)\n"
    )
    completed(tmp_path, script, 0, "found a word")


def test_an_answer_of_which_a_part_was_lost_is_repeated(tmp_path: Path) -> None:
    """It is larger than what a socket holds, and the first part goes to who waited as the descriptors were closed."""
    script = CLOSE + (
        "def then():\n    pass\n"
        "if c.rank == 1:\n    threading.Thread(target=close_all).start()\nelse:\n    when_closed()\n"
        "found = trainjob.broadcast_from_rank_zero('x' * 3_000_000 if c.rank == 0 else None)\ntrainjob.report({})\n"
        "print('found', len(found), flush=True)\n"
    )
    completed(tmp_path, script, 1, "found 3000000")
