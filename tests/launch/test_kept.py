"""For which jobs a kept process is: by what it was born with, what it has imported, and what the script says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch.local.kept import likeness, note
from trainjob.launch.local.kept.likeness import Wish
from trainjob.launch.local.kept.note import Note

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


def test_a_note_that_nobody_can_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert note.find() is None and note.why_gone() is None
    note.write(kept(wish(tmp_path), pid=os.getpid(), born="never"))
    assert note.find() is None
    (path,) = tmp_path.rglob("kept.json")
    assert path.stat().st_mode & 0o077 == 0
    path.write_text('{"id": 1}')
    assert note.find() is None and note.why_gone() is None


LOOKS = """
import sys, time
since = time.time_ns()
sys.path.insert(0, "lib")
import one
from trainjob.session.warm.unchanged import Files
files = Files(since)
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
        ("lib/two.py", "", "None"),
    ],
)
def test_files_that_are_another_by_now(tmp_path: Path, path: str, text: str, why: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "one.py").write_text("VALUE = 1")
    os.utime(tmp_path / "lib" / "one.py", (1e9, 1e9))
    process = subprocess.Popen(
        [sys.executable, "-c", LOOKS.replace('"lib"', repr(str(tmp_path / "lib")))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "None\n"
    (tmp_path / path).write_text(text)
    out, _ = process.communicate("\n")
    assert why in out


def test_a_file_that_changes_while_it_is_imported_is_not_trusted(tmp_path: Path) -> None:
    code = LOOKS.replace('"lib"', repr(str(tmp_path))).replace(
        "import one", "open(sys.path[0] + '/one.py', 'w')\nimport one"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "one.py was changed while it was imported" in done.stdout, done.stderr
