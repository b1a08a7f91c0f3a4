"""For which jobs a kept process is: by what it was born with, what it has imported, and what the script says."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.cli.argument_types import keeping
from trainjob.launch.local import lock
from trainjob.launch.local.kept import keeper, likeness, line, making, note
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.kept.likeness import Wish
from trainjob.launch.local.kept.note import Note
from trainjob.launch.local.process import Launch
from trainjob.session.warm import kept as session_kept
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.warm_messages import TO_KEPT, Take, packet

TRAINS = "import torch\nfrom torch import optim\n"


def wish(folder: Path, text: str = TRAINS, *, environ: dict[str, str] | None = None, **fields: Any) -> Wish:
    (folder / "train.py").write_text(text)
    words = fields.pop("words", [sys.executable, str(folder / "train.py"), "--lr", "1"])
    wished = {"prefork": "Always", "preload": None, **fields}
    return Wish(words, {"PATH": os.environ["PATH"], **(environ or {})}, str(folder), **wished)


def kept(of: Wish, **fields: Any) -> Note:
    return Note(
        **{
            "id": "a",
            "pid": 1,
            "born": "1",
            "until": 0.0,
            "working_dir": of.working_dir,
            "script": of.script,
            "modules": of.reading.plan().modules,
            "learned": (),
            "imports": of.reading.imports(),
            "place": likeness.place(of.working_dir),
            "salt": "s",
            "environ": likeness.hashed(of.environ, "s"),
            **fields,
        }
    )


def test_the_same_job_again_and_what_is_no_librarys(tmp_path: Path) -> None:
    first = wish(tmp_path, environ={"KNOB": "1"})
    own = {
        "KNOB": "1",
        "TRAINJOB_JOB": "other",
        "RANK": "3",
        "MASTER_PORT": "1",
        "SSH_CLIENT": "x",
        "TERM_PROGRAM": "x",
    }
    assert likeness.why_not(kept(first), wish(tmp_path, environ=own)) is None
    assert "1" not in kept(first).environ.values(), "values are not kept"


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        (TRAINS, {"environ": {"LD_LIBRARY_PATH": "/x"}}, "variable LD_LIBRARY_PATH is another"),
        (TRAINS, {"words": [sys.executable, "-O", "train.py"]}, "its Python has flags (-O)"),
        (TRAINS, {"words": ["/usr/bin/env", "true"]}, "`python script.py`"),
        (TRAINS, {"prefork": "Never"}, "spec.runtime.prefork is Never"),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n" + TRAINS, {"prefork": "auto"}, "OMP_NUM_THREADS"),
        ("print(1)\n", {}, "does not import torch"),
        (TRAINS, {"preload": ["torch", "pandas"]}, "has not imported pandas"),
    ],
)
def test_what_makes_a_start_cold(tmp_path: Path, text: str, fields: dict[str, Any], why: str) -> None:
    found = likeness.why_not(kept(wish(tmp_path)), wish(tmp_path, text, **fields))
    assert found is not None and why in found


@pytest.mark.parametrize("name", ["the working folder", "a limit (ulimit)", "the mnt namespace"])
def test_what_a_process_has_by_its_birth(tmp_path: Path, name: str) -> None:
    one = kept(wish(tmp_path))
    other = dataclasses.replace(one, place={**one.place, name: "x"})
    assert likeness.why_not(other, wish(tmp_path)) == f"{name} is another"


def test_what_was_learned_is_for_its_script_while_that_sets_no_variable(tmp_path: Path) -> None:
    learned = kept(wish(tmp_path), learned=("pandas",))
    assert likeness.why_not(learned, wish(tmp_path)) is None
    other = wish(tmp_path, words=[sys.executable, str(tmp_path / "other.py")])
    (tmp_path / "other.py").write_text(TRAINS)
    assert "needs" in str(likeness.why_not(learned, other))
    sets = wish(tmp_path, TRAINS + "import os\nos.environ['HF_HOME'] = 'x'\n")
    assert "sets variables" in str(likeness.why_not(learned, sets))
    assert likeness.why_not(kept(wish(tmp_path)), sets) is None


def test_what_the_script_does_not_import_any_more_is_not_imported_ahead(tmp_path: Path) -> None:
    before = kept(wish(tmp_path, TRAINS + "import seaborn.objects as so, pandas\n"), learned=("seaborn", "pandas"))
    assert likeness.why_not(before, wish(tmp_path, TRAINS + "import math, pandas\nfrom seaborn import utils\n")) is None
    after = likeness.why_not(before, wish(tmp_path, TRAINS + "import pandas\n# import seaborn\n"))
    assert after == "the script does not import seaborn any more"


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "the set of signals that are ignored (nohup)"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])", "the set of signals that wait"),
        ("ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)", "what it may do (NoNewPrivs)"),
        ("open('/proc/self/oom_score_adj', 'w').write('900')", "the score for ends for lack of memory (choom)"),
    ],
)
def test_what_a_fork_would_have_of_another_birth(before: str, name: str) -> None:
    code = f"""
import ctypes, signal
from trainjob.launch.local.kept import likeness
one = likeness.place("/")
{before}
other = likeness.place("/")
print([name for name in one if one[name] != other[name]])
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.strip() == str([name]), done.stderr


def test_the_umask_is_read_and_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.umask(0o027)
    try:
        monkeypatch.delattr(os, "umask")  # what is set for a moment is set for all threads
        assert line._umask() == 0o027
    finally:
        monkeypatch.undo()
        os.umask(own)


def test_one_that_slept_until_after_its_time_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = line.listening(Door(str(tmp_path), "a.sock"))
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener, caller:
        caller.connect(str(tmp_path / "a.sock"))
        times = iter([0.0, 100.0])
        monkeypatch.setattr(session_kept, "now", lambda: next(times))
        assert session_kept._caller(listener, 10.0, -1, str(tmp_path / "a.sock")) is None


def test_one_whose_launcher_is_gone_waits_for_nobody(tmp_path: Path) -> None:
    listener = line.listening(Door(str(tmp_path), "a.sock"))
    reading, writing = os.pipe()
    with listener:
        os.close(writing)
        assert session_kept._caller(listener, session_kept.now() + 1e6, reading, str(tmp_path / "a.sock")) is None
    os.close(reading)


@pytest.mark.parametrize("gone", [False, True])
def test_one_that_nobody_can_reach_waits_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """Its note was of another version, say, and the next one took away what was left."""
    looks = iter([0.0] * 3)
    monkeypatch.setattr(session_kept, "LOOK_S", 0.0)
    monkeypatch.setattr(session_kept, "now", lambda: next(looks, 1e9))
    with line.listening(Door(str(tmp_path), "a.sock")) as listener:
        if gone:
            (tmp_path / "a.sock").unlink()
        assert session_kept._caller(listener, 1e6, -1, str(tmp_path / "a.sock")) is None
    assert len(list(looks)) == (2 if gone else 0)


def test_one_of_which_no_note_can_be_written_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    begin = making.start

    def noted(*words: Any) -> tuple[subprocess.Popen[bytes], Door]:
        found = begin(*words)
        started.append(found[0])
        return found

    def full(_: Note) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(making, "start", noted)
    monkeypatch.setattr(note, "write", full)
    folder = note.folder(make=True)
    with pytest.raises(OSError, match="No space"):
        keeper._begin(folder, wish(tmp_path), 600.0, ())
    assert started[0].returncode == -9
    assert not [name for name in os.listdir(folder) if name.endswith(".sock")]


def test_who_waits_for_one_that_is_silent_can_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    silent = kept(wish(tmp_path))
    launch = Launch(words=["true"], environment={}, working_dir="/", inherited=())
    note.folder(make=True)
    door = note.door(silent)
    with line.listening(door) as listener:
        taking = line.Taking()
        listener.settimeout(HANG_S)
        with ThreadPoolExecutor() as threads:
            taken = threads.submit(taking.taken, door, HANG_S, launch, 1)
            heard, _ = listener.accept()
            with heard:
                assert heard.recv(line.PACKET_LIMIT) == packet(TO_KEPT, Take())
                taking.give_up()
                with pytest.raises(ConnectionError):
                    taken.result(timeout=HANG_S)
                assert not heard.recv(line.PACKET_LIMIT), "and sends no job's descriptors"
        with pytest.raises(ConnectionError):
            taking.taken(door, HANG_S, launch, 1)


def job(**runtime: Any) -> TrainJob:
    containers = [{"name": "trainer", "image": "x"}]
    return TrainJob.model_validate(
        {
            "apiVersion": "trainjob.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "a"},
            "spec": {"template": {"spec": {"containers": containers}}, "runtime": runtime},
        }
    )


def test_one_that_was_silent_at_the_start_is_asked_nothing_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended at once, and another takes its place: who waits for the job's end waits for no answer of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for limit in ("ANSWER_S", "PATIENCE_S", "LEAVE_S"):
        monkeypatch.setattr(line, limit, 0.1)
    (tmp_path / "train.py").write_text("")
    words = ["python", "-m", "trainjob.launch.local.pod", "--", sys.executable, str(tmp_path / "train.py")]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    launch = Launch(words=words, environment=environ, working_dir=str(tmp_path), inherited=())
    of_it = job(prefork="Always", preload=["decimal"])
    said: list[str] = []
    of_job = keeper.Keeper(of_it, said.append)
    with subprocess.Popen(["sleep", "600"]) as silent, contextlib.ExitStack() as stack:
        stack.callback(silent.kill)
        born = lock.started(silent.pid)
        note.write(kept(Wish.of(launch, of_it.spec.runtime), pid=silent.pid, born=born, until=time.time() + 600))
        found = note.find()
        assert found is not None
        with line.listening(note.door(found)) as listener:
            assert of_job.take(launch, os.dup(1)) is None
            assert said == ["this start is cold, though a process was kept warm: it does not answer"]
            listener.accept()[0].close()
            stack.callback(keeper.end)
            assert "a warm process stays" in of_job.keep(600)
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert silent.wait(HANG_S) == -signal.SIGKILL


def test_whatever_goes_wrong_is_a_cold_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def broken() -> Note:
        raise ImportError("a file was replaced meanwhile")

    monkeypatch.setattr(note, "find", broken)
    launch = Launch(words=["true"], environment={}, working_dir="/", inherited=())
    assert keeper.Keeper(job(), said.append).take(launch, os.dup(1)) is None
    assert "ImportError: a file was replaced" in said[0]


@pytest.mark.parametrize("what", ["a list", "code"])
def test_whatever_goes_wrong_at_a_jobs_end_is_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / contract.IMPORTED).write_text("[" * 100_000)
    begun: list[tuple[str, ...]] = []

    def begin(folder: str, wish: Wish, seconds: float, learned: tuple[str, ...]) -> None:
        begun.append(learned)
        if what == "code":
            raise ImportError("a file was replaced meanwhile")

    monkeypatch.setattr(keeper, "_begin", begin)
    environ = {"PATH": os.environ["PATH"], contract.ENV_WORK_DIR: str(tmp_path)}
    words = ["pod", "--", sys.executable, str(tmp_path / "train.py")]
    of_job = keeper.Keeper(job(prefork="Always"), print)
    assert (
        of_job.take(Launch(words=words, environment=environ, working_dir=str(tmp_path), inherited=()), os.dup(1))
        is None
    )
    said = of_job.keep(600)
    assert begun == [()] and ("a file was replaced" if what == "code" else "a warm process stays") in said


def test_how_long_is_bounded() -> None:
    assert keeping("10m") == 600
    with pytest.raises(argparse.ArgumentTypeError, match="longer than 7 days"):
        keeping("99999999999h")


def test_a_note_that_nobody_can_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert note.find() is None and note.why_gone() is None
    assert not list(tmp_path.iterdir()), "who looks leaves nothing"
    note.write(kept(wish(tmp_path), pid=os.getpid(), born="never"))
    assert note.find() is None
    (path,) = tmp_path.rglob("kept.json")
    assert path.stat().st_mode & 0o077 == 0
    whole = json.loads(path.read_text())
    damages = {"until": "x", "pid": None, "place": ["a"], "modules": "torch", "learned": [1], "environ": {"A": 1}}
    for damaged in ({"id": 1}, [], *({**whole, name: value} for name, value in damages.items())):
        path.write_text(json.dumps(damaged))
        assert note.find() is None and note.why_gone() is None, damaged


LOOKS = """
import site, sys, time
since = time.time_ns() + 100_000_000
sys.path.insert(0, "lib")
sys.path.insert(1, "lib" + "/../project")
site.getsitepackages = lambda: ["lib"]
from trainjob.session.warm.unchanged import Files, Names
names = Names()
with names.watched():
    import one
files = Files(since, names)
print(files.changed(), flush=True)
for _ in sys.stdin:
    print(files.changed(), flush=True)
"""


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("lib/one.py", "VALUE = 22", "one.py has changed"),
        ("lib/typing.py", "", "typing.py may decide"),
        ("lib/more.pth", "/x", "more.pth may decide"),
        ("given/model.pth", "weights", "None"),
        ("project/model.pth", "weights", "None"),
        ("project/wanted.py", "", "wanted.py may decide"),
        ("given/typing.py", "", "typing.py may decide"),
        ("lib/wanted.py", "", "wanted.py may decide"),
        ("lib/wanted-1.0.dist-info", "", "wanted-1.0.dist-info may decide"),
        ("lib/two.py", "", "None"),
        ("lib/many/wanted.py", "", "many/wanted.py may decide"),
        ("lib/many/part/__init__.py", "", "many/part may decide"),
        ("lib/many/two.py", "", "None"),
    ],
)
def test_files_that_are_another_by_now(tmp_path: Path, path: str, text: str, why: str) -> None:
    (tmp_path / "lib" / "many").mkdir(parents=True)
    (tmp_path / "lib" / "many" / "__init__.py").touch()
    (tmp_path / "lib" / "many" / "part.py").touch()
    tries = "".join(f"try:\n    import {name}\nexcept ImportError:\n    pass\n" for name in ("wanted", "many.wanted"))
    (tmp_path / "lib" / "one.py").write_text(f"{tries}import many.part")
    os.utime(tmp_path / "lib" / "one.py", (1e9, 1e9))
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKS.replace('"lib"', repr(str(tmp_path / "lib")))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path / "given"), *sys.path]))},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "None\n"
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    out, _ = process.communicate("\n")
    assert why in out


@pytest.mark.parametrize("copied", [False, True])
def test_a_file_that_changes_while_it_is_imported_is_not_trusted(tmp_path: Path, copied: bool) -> None:
    """Also one that comes from elsewhere with the time that it has there, as package managers put it."""
    kept = "import os; os.utime(sys.path[0] + '/one.py', (1e9, 1e9))" if copied else ""
    code = LOOKS.replace('"lib"', repr(str(tmp_path))).replace(" + 100_000_000", "")
    code = code.replace("    import one", f"    open(sys.path[0] + '/one.py', 'w')\n    {kept}\n    import one")
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "one.py was changed while it was imported" in done.stdout, done.stderr


def test_a_file_from_the_future_counts_as_no_change(tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    os.utime(tmp_path / "one.py", (5e9, 5e9))
    done = subprocess.run(
        [sys.executable, "-c", LOOKS.replace('"lib"', repr(str(tmp_path)))],
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout == "None\n", done.stderr
