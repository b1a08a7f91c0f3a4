"""Ranks that are forks of a warm parent: the same in everything that a program can see, and started plainly where they
could not be.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.fake_agent import FakeAgent
from support.patience import HANG_S
from support.warm_ranks import Runs, run_plain, run_warm
from trainjob.agent.processes import rank_command
from trainjob.agent.warm.making import DEATHS
from trainjob_api import contract

pytestmark = pytest.mark.slow

PROBE = Path(__file__).with_name("observe.py")

ACCEPTED = {
    "modules": "what the warm parent imports is there before the script asks for it",
    "atexit": "so is what those modules do at exit",
    "atexit of threads": "the same",
    "loggers": "and their loggers",
    "frozen": "what the parent imported is kept from the collector, so that its pages stay shared",
    "warnings": "so are the warnings that those modules filter",
}
"""What a rank that is forked has otherwise than one that starts Python anew."""


def _observed(runs: Runs) -> tuple[dict[str, Any], list[str]]:
    (rank,) = runs.ranks
    first, *rest = rank.out.splitlines()
    assert rank.status == 0, rank.out
    return json.loads(first), rest


def _write(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(textwrap.dedent(text))


@pytest.mark.parametrize(
    ("flags", "command", "extra"),
    [
        ([], ["train.py", "a", "--b=ü"], {}),
        (["-X", "dev", "-W", "ignore::UserWarning", "-O"], ["./train.py"], {"PYTHONUNBUFFERED": ""}),
        ([], ["-m", "package.train", "x"], {}),
        (["-P"] if sys.version_info >= (3, 11) else [], ["-m", "train", "x"], {"OMP_NUM_THREADS": "3"}),
    ],
)
def test_a_fork_sees_what_a_new_interpreter_sees(
    tmp_path: Path, flags: list[str], command: list[str], extra: dict[str, str]
) -> None:
    _write(tmp_path, PROBE.read_text())
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "beside.py").write_text("")
    _write(tmp_path / "package", "from . import beside\n" + PROBE.read_text())
    if "-P" in flags:
        extra = {**extra, "PYTHONPATH": os.pathsep.join([str(tmp_path), *_library()])}
    plain = run_plain(command, tmp_path, flags=flags, extra=extra)
    warm = run_warm(command, tmp_path, flags=flags, extra=extra, preload=["decimal"])
    assert [each.warm for each in (*plain.ranks, *warm.ranks)] == [False, True], warm.said
    (expected, last), (found, last_found) = _observed(plain), _observed(warm)
    differ = {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]}
    assert not {name: each for name, each in differ.items() if name not in ACCEPTED}
    assert set(found["modules"]) >= {"decimal", *expected["modules"]}
    assert last == last_found == ["to stderr", "without an endat exit"]


def test_torch_is_the_same_too(tmp_path: Path) -> None:
    """Takes long: four processes import torch, among them a spawned DataLoader worker of each."""
    _write(tmp_path, PROBE.read_text())
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(run_plain, ["train.py", "torch"], tmp_path, extra={"OMP_NUM_THREADS": "2"})
        warm = pool.submit(run_warm, ["train.py", "torch"], tmp_path, extra={"OMP_NUM_THREADS": "2"}, preload=["torch"])
    assert warm.result().ranks[0].warm, warm.result().said
    (expected, last), (found, last_found) = _observed(plain.result()), _observed(warm.result())
    differ = {name: (expected[name], found[name]) for name in expected if expected[name] != found[name]}
    assert {name: each for name, each in differ.items() if name not in {*ACCEPTED, "torch modules"}} == {}
    assert set(found["torch modules"]) >= set(expected["torch modules"])
    assert last == last_found


def test_what_modules_keep_of_tmpdir_when_they_are_imported_is_the_ranks(tmp_path: Path) -> None:
    """torch._dynamo makes a folder there for its cache, and remembers it."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text(
        "import os, tempfile\nplace = os.environ['CACHE_AHEAD'] = tempfile.mkdtemp('-cache')\n"
    )
    (tmp_path / "scripts").mkdir()
    _write(
        tmp_path / "scripts",
        """
        import ahead, os, tempfile
        print(os.environ["TMPDIR"] == tempfile.gettempdir() == os.path.dirname(ahead.place))
        print(os.environ["CACHE_AHEAD"] == ahead.place)
        """,
    )
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    tmp, where = tmp_path / "tmp", tmp_path / "scripts"
    tmp.mkdir()
    runs = run_warm(["train.py"], where, preload=["ahead"], extra={"PYTHONPATH": path}, tmp=str(tmp))
    assert [(each.out, each.warm) for each in runs.ranks] == [("True\nTrue\n", True)], runs.said
    assert len(list(tmp.iterdir())) == 1


@pytest.mark.parametrize("own", [False, True])
def test_the_cache_of_torchs_compiler_lies_in_the_ranks_tmpdir(tmp_path: Path, own: bool) -> None:
    """Its parent may be one that is kept for the next job. One that the job names stays."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    text = f"import os, tempfile\nos.environ.setdefault({name!r}, os.path.join(tempfile.gettempdir(), 'compiled'))\n"
    extra = _libraries(tmp_path, {"ahead.py": text})
    _write(tmp_path / "scripts", f"import os\nprint(os.environ[{name!r}])\n")
    extra.update({name: "/the/jobs/own"} if own else {})
    ranks = [{"TMPDIR": str(tmp_path / "of the rank")}]
    runs = run_warm(["train.py"], tmp_path / "scripts", ranks=ranks, preload=["ahead"], extra=extra)
    expected = "/the/jobs/own" if own else f"{tmp_path}/of the rank/compiled"
    assert [(each.out, each.warm) for each in runs.ranks] == [(f"{expected}\n", True)], runs.said


def test_a_cache_of_torchs_compiler_that_a_library_places_stays_there(tmp_path: Path) -> None:
    name = "TORCHINDUCTOR_CACHE_DIR"
    extra = _libraries(tmp_path, {"ahead.py": f"import os, tempfile\nos.environ[{name!r}] = '/of/the/library'\n"})
    _write(tmp_path / "scripts", f"import ahead, os\nprint(os.environ[{name!r}])\n")
    ranks = [{"TMPDIR": str(tmp_path / "of the rank")}]
    runs = run_warm(["train.py"], tmp_path / "scripts", ranks=ranks, preload=["ahead"], extra=extra)
    assert [(each.out, each.warm) for each in runs.ranks] == [("/of/the/library\n", True)], runs.said


def test_what_libraries_do_with_the_environment_is_done_in_each_rank(tmp_path: Path) -> None:
    for name in ("libraries", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text(
        "import os\nos.environ['OF_LIBRARY'] = 'set'\nos.environ['OF_JOB'] += ' and more'\ndel os.environ['NOT_FOR_IT']\n"
        "os.environ.setdefault('LOCAL_RANK', 'none')\n"
    )
    _write(
        tmp_path / "scripts",
        "import ahead, os\nprint(*map(os.environ.get, ('OF_LIBRARY', 'OF_JOB', 'NOT_FOR_IT', 'LOCAL_RANK')))\n"
        "print(*sorted(os.environ.keys() & {'OF_LIBRARY', 'OF_JOB', 'NOT_FOR_IT'}), os.getenv('NOT_FOR_IT'), sep=', ')\n",
    )
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    extra = {"PYTHONPATH": path, "OF_JOB": "the job's", "NOT_FOR_IT": "1"}
    ranks = [{contract.ENV_LOCAL_RANK: "0"}]
    plain = run_plain(["train.py"], tmp_path / "scripts", ranks=ranks, extra=extra)
    warm = run_warm(["train.py"], tmp_path / "scripts", ranks=ranks, preload=["ahead"], extra=extra)
    assert [each.warm for each in (*plain.ranks, *warm.ranks)] == [False, True], warm.said
    assert warm.ranks[0].out == plain.ranks[0].out == "set the job's and more None 0\nOF_JOB, OF_LIBRARY, None\n"


def test_so_is_what_pythons_own_start_does_with_it(tmp_path: Path) -> None:
    """In the ranks' Python alone: their agent's may be another, of another folder."""
    text = "import os\nif 'PYTHONUNBUFFERED' in os.environ:\n    os.environ['OF_SITE'] = 'set'\n    del os.environ['NOT_FOR_IT']\n"
    extra = {**_libraries(tmp_path, {"sitecustomize.py": text}), "NOT_FOR_IT": "1"}
    _write(tmp_path / "scripts", "import os\nprint(os.environ['OF_SITE'], os.environ.get('NOT_FOR_IT'))\n")
    plain = run_plain(["train.py"], tmp_path / "scripts", extra=extra)
    warm = run_warm(["train.py"], tmp_path / "scripts", extra=extra)
    assert [each.warm for each in (*plain.ranks, *warm.ranks)] == [False, True], warm.said
    assert warm.ranks[0].out == plain.ranks[0].out == "set None\n"


def test_each_rank_has_random_numbers_of_its_own(tmp_path: Path) -> None:
    _write(
        tmp_path,
        """
        import multiprocessing.process, random, numpy, torch
        for each in (random.random(), numpy.random.rand(), torch.initial_seed(), torch.rand(1).item()):
            print(each)
        print(multiprocessing.process.current_process().authkey.hex())
        """,
    )
    runs = run_warm(["train.py"], tmp_path, ranks=[{}, {}], rounds=2, preload=["torch", "numpy"])
    assert [each.warm for each in runs.ranks] == [True] * 4, runs.said
    drawn = [line for each in runs.ranks for line in each.out.splitlines()]
    assert len(drawn) == len(set(drawn)) == 4 * 5


def test_generators_that_a_library_makes_for_itself_are_each_ranks_own(tmp_path: Path) -> None:
    """As MONAI's transforms have one. Those with a seed go on as in a plain rank."""
    library = """
        import copy, random, numpy.random as of_numpy
        class Transform:
            own = of_numpy.RandomState()
        python, generator = random.Random(), of_numpy.default_rng()
        seeded = [of_numpy.RandomState(5), of_numpy.default_rng(2**127 + 1), copy.copy(random.Random(5))]
        """
    extra = _libraries(tmp_path, {"ahead.py": textwrap.dedent(library)})
    _write(
        tmp_path / "scripts",
        """
        import ahead
        state, large, copied = ahead.seeded
        print(state.rand(), large.random(), copied.random())
        print(ahead.Transform.own.rand(), ahead.python.random())
        print(ahead.generator.random(), ahead.generator.spawn(1)[0].random())
        """,
    )
    plain = run_plain(["train.py"], tmp_path / "scripts", extra=extra)
    warm = run_warm(["train.py"], tmp_path / "scripts", ranks=[{}, {}], rounds=2, preload=["ahead"], extra=extra)
    assert [each.warm for each in warm.ranks] == [True] * 4, warm.said
    (seeded, *_), *all_drawn = [each.out.splitlines() for each in (*plain.ranks, *warm.ranks)]
    assert {first for first, *_ in all_drawn} == {seeded}
    drawn = [number for _, *lines in all_drawn for line in lines for number in line.split()]
    assert len(drawn) == len(set(drawn)) == 4 * 4


def test_objects_of_the_scripts_own_classes_come_back_from_spawned_processes(tmp_path: Path) -> None:
    _write(
        tmp_path,
        """
        import dataclasses, multiprocessing
        @dataclasses.dataclass
        class Item:
            number: int
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(Item, [1, 2]))
        """,
    )
    warm = run_warm(["train.py"], tmp_path, preload=["multiprocessing.pool"])
    assert [(each.warm, each.status, each.out) for each in warm.ranks] == [
        (True, 0, "[Item(number=1), Item(number=2)]\n")
    ]


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "sys.exit(3)",
        "sys.exit('words')",
        "os._exit(7)",
        "os.kill(os.getpid(), 9)",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); os.kill(os.getpid(), 15)",
        "raise ValueError('bad batch')",
        "os.kill(os.getpid(), 11)",
        "import nothing_of_that_name",
        "def f(:",
    ],
)
def test_a_fork_ends_as_a_new_interpreter_ends(tmp_path: Path, ending: str) -> None:
    _write(tmp_path, f"import os, signal, sys, atexit\natexit.register(print, 'at exit')\n{ending}\n")
    (plain,), warm = run_plain(["train.py"], tmp_path).ranks, run_warm(["train.py"], tmp_path)
    (rank,) = warm.ranks
    assert rank.warm, warm.said
    assert (rank.status, _without_addresses(rank.out)) == (plain.status, _without_addresses(plain.out))


def _without_addresses(text: str) -> str:
    """faulthandler's stack names threads by their addresses."""
    return re.sub("0x[0-9a-f]+", "0x", text)


def test_an_exception_is_told_to_the_agent(tmp_path: Path) -> None:
    _write(tmp_path, "import trainjob\ntrainjob.log({'loss': 1.0}, step=5)\nraise ValueError('bad batch')\n")
    with FakeAgent(tmp_path / "job", 1) as agent:
        own = {name: value for name, value in agent.environ(0).items() if name != contract.ENV_AGENT_PID}
        warm = run_warm(["train.py"], tmp_path, ranks=[own], extra=_of_all(own))
        agent.wait_for("the error", lambda: agent.rank_errors)
        assert [row["step"] for row in agent.rows] == [5]
    assert warm.ranks[0].warm, warm.said
    assert (agent.rank_errors[0]["type"], agent.rank_errors[0]["message"]) == ("ValueError", "bad batch")
    assert agent.rank_errors[0]["traceback"].splitlines()[1].endswith('train.py", line 3, in <module>')
    assert warm.ranks[0].out.splitlines()[1].endswith('train.py", line 3, in <module>')


def _of_all(environ: dict[str, str]) -> dict[str, str]:
    """What of a rank's variables the agent has as well."""
    return {name: value for name, value in environ.items() if name not in rank_command.PLACE}


UNFIT = {
    "threads": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "threads",
    ),
    "sockets": ("import socket; kept = socket.socket()", "opened socket"),
    "children": ("import subprocess; kept = subprocess.Popen(['sleep', '60'])", "started process"),
    "locks": (
        "import multiprocessing; kept = multiprocessing.get_context('fork').Lock()",
        "memory that its forks would share",
    ),
    "values": (
        "import multiprocessing; kept = multiprocessing.get_context('fork').Value('i', lock=False)",
        "memory that its forks would share",
    ),
    "files": ("kept = open('left', 'w')", "left"),
    "lock": (
        "import fcntl; kept = open(__file__); fcntl.flock(kept, fcntl.LOCK_SH)",
        "ahead.py",
    ),
    "folder": ("import os; os.chdir('/')", "changed the working folder"),
    "numbers": ("import random; random.seed(5)", "seeds random numbers (Python)"),
    "numbers of NumPy": ("import numpy; numpy.random.seed(5)", "seeds random numbers (NumPy)"),
    "place": ("import os; rank = int(os.environ.get('RANK', 0))", "ahead reads RANK while it is imported"),
    "timer": ("import signal; signal.setitimer(signal.ITIMER_REAL, 1000)", "set a timer"),
    "waits": ("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "waits for processes itself"),
    "exit": ("import tempfile; kept = tempfile.TemporaryDirectory()", "away at exit"),
    "object": (
        "import shutil, tempfile\nclass Own:\n    folder = tempfile.mkdtemp()\n"
        "    def __del__(self): shutil.rmtree(self.folder)\nkept = Own()",
        "away at exit",
    ),
    "tracer": ("import sys; sys.settrace(lambda *_: None)", "traces what runs"),
    "exceptions": ("1 / 0", "the import of ahead failed: ZeroDivisionError"),
    "ends": ("import os; os._exit(3)", "died 2 times, at last: it ended with exit code 3"),
    "leaves": ("raise SystemExit(3)", "the import of ahead failed: SystemExit"),
    "lacks": ("import nothing_of_that_name", "the import of ahead failed: No module named 'nothing_of_that_name'"),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_what_does_not_survive_a_fork_is_not_forked(tmp_path: Path, unfit: str) -> None:
    source, words = UNFIT[unfit]
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text(source)
    (tmp_path / "scripts").mkdir()
    _write(tmp_path / "scripts", "print('ran')\n")
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra={"PYTHONPATH": path}, rounds=2)
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran\n", False)] * 2
    assert [words in said for said in runs.said][-1:] == [True]
    assert len([said for said in runs.said if "new interpreter" in said]) == 1
    assert runs.left == []


OLDER_TORCH = """
import atexit, sys, tempfile, types
module = sys.modules["torch.distributed.nn.jit.instantiator"] = types.ModuleType("torch.distributed.nn.jit.instantiator")
exec('''
_TEMP_DIR = tempfile.TemporaryDirectory()
INSTANTIATED_TEMPLATE_DIR_PATH = _TEMP_DIR.name
atexit.register(_TEMP_DIR.cleanup)
sys.path.append(INSTANTIATED_TEMPLATE_DIR_PATH)
open(INSTANTIATED_TEMPLATE_DIR_PATH + "/_remote_module_non_scriptable.py", "x").close()
import _remote_module_non_scriptable
''', {**globals(), **vars(module)}, vars(module))
"""
IN_ITS_FOLDER = """
import os, sys
instantiator = sys.modules["torch.distributed.nn.jit.instantiator"]
path = instantiator.INSTANTIATED_TEMPLATE_DIR_PATH
assert instantiator._TEMP_DIR.name == path == sys.path[-1], sys.path
open(os.path.join(path, "written.py"), "x").close()
import written
import tempfile
os.environ["TMPDIR"] = os.getcwd()
assert tempfile.gettempdir() == os.getcwd(), "as in a rank of its own the script may say where its files go"
print(path)
"""


def test_ranks_have_folders_of_their_own_where_torch_makes_one_as_it_is_imported(tmp_path: Path) -> None:
    """Every torch up to 2.9 does, where torch._dynamo is imported: it was the end of all forks, and of those where
    temporary files lie below the script's folder.
    """
    for name in ("libraries", "scripts", "scripts/tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text(OLDER_TORCH)
    _write(tmp_path / "scripts", IN_ITS_FOLDER)
    path, tmp = os.pathsep.join([str(tmp_path / "libraries"), *_library()]), str(tmp_path / "scripts" / "tmp")
    ranks: list[dict[str, str]] = [{"TMPDIR": tmp}, {"TMPDIR": tmp}]
    extra = {"PYTHONPATH": path, "TMPDIR": tmp}
    runs = run_warm(["train.py"], tmp_path / "scripts", ranks=ranks, preload=["ahead"], extra=extra, rounds=2, tmp=tmp)
    assert [(each.status, each.warm) for each in runs.ranks] == [(0, True)] * 4, [runs.said, runs.ranks]
    made = {Path(each.out.strip()) for each in runs.ranks}
    assert len(made) == 4 and {folder.parent for folder in made} == {Path(tmp)}
    assert list(Path(tmp).iterdir()) == [], "each has taken its own away, and the parent the first one"


ONCE_IT_HAS_CLOSED = "while number == 0 and starter.parent.lives:\n    await asyncio.sleep(0.01)\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("time.sleep(1); os._exit(3)", "died 2 times, at last: it ended with exit code 3"),
        ("time.sleep(600)", "died 2 times, at last: it has closed its line to the agent"),
    ],
)
def test_why_a_parent_is_gone_is_told_by_its_end_not_by_its_line(tmp_path: Path, source: str, words: str) -> None:
    """Which closes a moment before, or alone: an import may close all files that it has not opened."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text(f"import os, time; os.closerange(3, 100); {source}")
    (tmp_path / "scripts").mkdir()
    _write(tmp_path / "scripts", "print('ran')\n")
    extra = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "libraries"), *_library()])}
    cwd, then = tmp_path / "scripts", ONCE_IT_HAS_CLOSED
    runs = run_warm(["train.py"], cwd, preload=["ahead"], extra=extra, rounds=2, then=then)
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran\n", False)] * 2
    assert words in runs.said[-1]
    assert runs.left == []


def test_each_rank_has_its_own_place_in_a_file_that_a_library_reads(tmp_path: Path) -> None:
    for name in ("libraries", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "words").write_bytes(b"one two three")
    (tmp_path / "libraries" / "gone").write_bytes(b"also")
    (tmp_path / "libraries" / "ahead.py").write_text(
        "import os\nfolder = os.path.dirname(__file__)\nwords, gone = (os.open(os.path.join(folder, name), os.O_NOFOLLOW)"
        " for name in ('words', 'gone'))\nos.set_inheritable(gone, True)\nos.read(words, 4)\n"
        "os.unlink(os.path.join(folder, 'gone'))\n"
    )
    _write(
        tmp_path / "scripts",
        "import ahead, os\nprint(os.read(ahead.words, 4), os.read(ahead.gone, 9), os.get_inheritable(ahead.words),"
        " os.get_inheritable(ahead.gone))\n",
    )
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra={"PYTHONPATH": path}, rounds=2)
    assert [(each.out, each.warm) for each in runs.ranks] == [("b'two ' b'also' False True\n", True)] * 2, runs.said


def test_code_of_the_job_is_not_imported_ahead(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    _write(tmp_path, "import mine\nprint('ran')\n")
    path = os.pathsep.join([str(tmp_path), *_library()])
    runs = run_warm(["train.py"], tmp_path, preload=["mine"], extra={"PYTHONPATH": path})
    assert (runs.ranks[0].out, runs.ranks[0].warm) == ("ran\n", False)
    assert "module mine lies beside the script" in runs.said[0]


INSTALLS = "if number == 0:\n    os.mkdir('../libraries/ahead-2.0.dist-info')\n"


def test_what_was_installed_anew_is_not_what_was_imported_ahead(tmp_path: Path) -> None:
    """Forks that wait start Python anew, and another parent is made."""
    for name in ("libraries", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text("")
    _write(tmp_path / "scripts", "import os, sys\nprint('ahead' in sys.modules)\n")
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    runs = run_warm(
        ["train.py"], tmp_path / "scripts", preload=["ahead"], extra={"PYTHONPATH": path}, rounds=3, then=INSTALLS
    )
    assert runs.ranks[0].warm, "it was forked before"
    assert (runs.ranks[0].out, runs.ranks[2].out) == ("False\n", "True\n"), runs.said
    words = "ahead-2.0.dist-info may decide what is imported, and has changed"
    assert words in runs.said[0] and "new interpreter" in runs.said[0]
    assert [said for said in runs.said if "Another one is made" in said] == [
        f"the warm parent died: {tmp_path}/libraries/{words}. Another one is made"
    ]


def test_a_start_whose_parent_would_not_be_forked_says_why_and_the_next_finds_another(tmp_path: Path) -> None:
    """Its forks were asked for, and are waited for, as it says so."""
    extra = _libraries(tmp_path, {"ahead.py": ""})
    _write(tmp_path / "scripts", "import sys\nprint('ahead' in sys.modules)\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra, rounds=2, then=INSTALLS)
    why = f"{tmp_path}/libraries/ahead-2.0.dist-info may decide what is imported, and has changed"
    assert runs.said[-2:] == [
        f"ranks start in a new interpreter: {why}",
        f"the warm parent died: {why}. Another one is made",
    ], runs.said
    assert runs.ranks[-1].out == "False\n"


def test_however_often_something_is_installed_another_parent_is_made(tmp_path: Path) -> None:
    for name in ("libraries", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "libraries" / "ahead.py").write_text("")
    _write(tmp_path / "scripts", "import sys\nprint('ahead' in sys.modules)\n")
    path = os.pathsep.join([str(tmp_path / "libraries"), *_library()])
    installs = "if number in (0, 2, 4):\n    os.mkdir(f'../libraries/ahead-{number}.dist-info')\n"
    runs = run_warm(
        ["train.py"], tmp_path / "scripts", preload=["ahead"], extra={"PYTHONPATH": path}, rounds=7, then=installs
    )
    assert runs.ranks[-1].out == "True\n", runs.said


def test_what_changes_each_time_it_is_imported_is_not_imported_ahead_for_ever(tmp_path: Path) -> None:
    """As a project that is built anew at its import."""
    text = "import os\nos.utime(__file__)\nwith open(f'{os.path.dirname(__file__)}/imports', 'a') as file:\n"
    extra = _libraries(tmp_path, {"ahead.py": f"{text}    file.write('x')\n"})
    _write(tmp_path / "scripts", "print('ran')\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra, rounds=4)
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran\n", False)] * 4
    assert len((tmp_path / "libraries" / "imports").read_text()) == DEATHS, runs.said


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    _write(tmp_path, "print('ran')\n")
    runs = run_warm(["train.py"], tmp_path, preload=["decimal", "nothing_of_that_name"])
    assert (runs.ranks[0].out, runs.ranks[0].warm) == ("ran\n", True)
    assert "names what is not installed: nothing_of_that_name" in runs.said[0]


@pytest.mark.parametrize("kind", ["decimal.py", "decimal/__init__.py"])
def test_a_module_beside_the_script_is_the_one_that_is_imported(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).parent.mkdir(exist_ok=True)
    (tmp_path / kind).write_text("own = True\n")
    _write(tmp_path, "import decimal, os\nprint(decimal.own, os.getpid())\n")
    runs = run_warm(["train.py"], tmp_path, preload=["decimal"])
    (rank,) = runs.ranks
    assert rank.out == f"True {rank.pid}\n"
    assert "decimal" in runs.said[0] and "takes the place" in runs.said[0]


@pytest.mark.parametrize("beside", ["faster.py", "faster/__init__.py", "fast.py"])
def test_a_module_beside_the_script_that_a_library_does_without_elsewhere(tmp_path: Path, beside: str) -> None:
    """It is there as the library is imported in a plain rank, and uses it then."""
    text = "import importlib.util\nfast = importlib.util.find_spec('faster') is not None\n"
    extra = _libraries(tmp_path, {"ahead.py": text})
    (tmp_path / "scripts" / beside).parent.mkdir(exist_ok=True)
    (tmp_path / "scripts" / beside).touch()
    _write(tmp_path / "scripts", "import ahead\nprint(ahead.fast)\n")
    plain = run_plain(["train.py"], tmp_path / "scripts", extra=extra)
    warm = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra)
    is_there = beside != "fast.py"
    assert plain.ranks[0].out == warm.ranks[0].out == f"{is_there}\n"
    assert ["looked for in vain" in said for said in warm.said] == [True] * is_there


def test_what_the_job_wants_ahead_and_is_beside_its_script_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    _write(tmp_path, "import own\n")
    runs = run_warm(["train.py"], tmp_path, preload=["own", "decimal"])
    assert [each.warm for each in runs.ranks] == [True]
    assert len(runs.said) == 1 and "names what is not installed: own" in runs.said[0]


def _libraries(tmp_path: Path, files: dict[str, str]) -> dict[str, str]:
    """Variables with which these modules are found, which do not lie beside scripts in `scripts`."""
    for name, text in files.items():
        path = tmp_path / "libraries" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "scripts").mkdir()
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "libraries"), *_library()])}


def test_a_package_beside_the_script_takes_the_place_of_one_without_a_file_of_its_own(tmp_path: Path) -> None:
    extra = _libraries(tmp_path, {"ahead/part.py": ""})
    (tmp_path / "scripts" / "ahead").mkdir()
    (tmp_path / "scripts" / "ahead" / "__init__.py").write_text("own = True\n")
    _write(tmp_path / "scripts", "import ahead\nprint(ahead.own)\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead.part"], extra=extra)
    assert runs.ranks[0].out == "True\n"
    assert "takes the place" in runs.said[0]


def test_a_fork_that_starts_python_anew_has_nothing_of_what_its_parent_imported(tmp_path: Path) -> None:
    text = "import decimal, os, signal\nos.umask(0o55)\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    extra = _libraries(tmp_path, {"ahead.py": f"{text}os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"})
    (tmp_path / "scripts" / "decimal.py").touch()
    what = "oct(os.umask(0)), signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.sched_getaffinity(0)"
    _write(tmp_path / "scripts", f"import os, signal\nprint({what})\n")
    warm = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra)
    assert warm.ranks[0].out == run_plain(["train.py"], tmp_path / "scripts", extra=extra).ranks[0].out
    assert "takes the place" in warm.said[0]


@pytest.mark.parametrize("command", [["train.py"], ["-m", "train"]])
def test_folders_that_a_library_puts_in_front_of_sys_path_are_in_front(tmp_path: Path, command: list[str]) -> None:
    text = "import os, sys\nsys.path[:0] = [os.path.join(os.path.dirname(__file__), name) for name in ('one', 'two')]\n"
    extra = _libraries(tmp_path, {"ahead.py": text, "two/found.py": "place = 'the library'\n"})
    (tmp_path / "scripts" / "found.py").write_text("place = 'the script'\n")
    _write(tmp_path / "scripts", "import ahead, found, sys\nprint(found.place, *sys.path, sep='\\n')\n")
    plain = run_plain(command, tmp_path / "scripts", extra=extra)
    warm = run_warm(command, tmp_path / "scripts", preload=["ahead"], extra=extra)
    assert warm.ranks[0].warm, warm.said
    assert warm.ranks[0].out == plain.ranks[0].out
    assert "the library" in plain.ranks[0].out


@pytest.mark.parametrize("command", [["train.py"], ["-m", "train"]])
def test_so_are_folders_that_are_there_already_and_those_behind_a_scripts_own(
    tmp_path: Path, command: list[str]
) -> None:
    """As libraries have it that put their own folder in front, or one behind the script's."""
    text = "import os, sys\nhere = os.path.dirname(__file__)\nsys.path.insert(0, here)\nsys.path.insert(2, here + '/two')\n"
    files = {"ahead.py": text, "found.py": "place = 'the library'\n", "two/other.py": "place = 'of the library'\n"}
    extra = _libraries(tmp_path, {**files, "other.py": "place = 'of another'\n"})
    (tmp_path / "scripts" / "found.py").write_text("place = 'the script'\n")
    _write(
        tmp_path / "scripts", "import ahead, found, other, sys\nprint(found.place, other.place, *sys.path, sep='\\n')\n"
    )
    plain = run_plain(command, tmp_path / "scripts", extra=extra)
    warm = run_warm(command, tmp_path / "scripts", preload=["ahead"], extra=extra)
    assert warm.ranks[0].warm, warm.said
    assert warm.ranks[0].out == plain.ranks[0].out
    assert plain.ranks[0].out.startswith("the library\n")


def test_modules_that_answer_as_they_like_are_not_asked(tmp_path: Path) -> None:
    """Nor is a standard stream taken for one."""
    text = (
        "import sys, types\nclass Lazy(types.ModuleType):\n    def __getattr__(self, name): raise RuntimeError(name)\n"
    )
    extra = _libraries(tmp_path, {"ahead.py": f"{text}sys.modules['lazy'] = Lazy('lazy')\nsys.stdout = None\n"})
    _write(tmp_path / "scripts", "import ahead, os\nos.write(1, b'ran')\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra)
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran", True)], runs.said


def test_what_multiprocessing_does_at_exit_is_done_in_each_rank(tmp_path: Path) -> None:
    text = "from multiprocessing import util\nutil.Finalize(None, print, ['at exit'], exitpriority=1)\n"
    extra = _libraries(tmp_path, {"ahead.py": text})
    _write(tmp_path / "scripts", "import ahead\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", ranks=[{}, {}], preload=["ahead"], extra=extra)
    assert [(each.out, each.warm) for each in runs.ranks] == [("at exit\n", True)] * 2, runs.said


@pytest.mark.parametrize("archive", [False, True], ids=["as it lies", "in an archive"])
def test_a_module_that_was_edited_is_imported_anew(tmp_path: Path, archive: bool) -> None:
    """One that is installed as it lies, and was named. Forks that wait start Python anew, and another parent is
    made.
    """
    name = "libraries/packed.zip" if archive else "libraries/ahead.py"
    extra, path = _libraries(tmp_path, {"more.py": ""}), tmp_path / name
    extra["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'libraries' / 'packed.zip'}"
    texts = []
    for version in (1, 22):
        texts.append(path.with_suffix(f".{version}"))
        if archive:
            with zipfile.ZipFile(texts[-1], "w") as file:
                file.writestr("ahead.py", f"VALUE = {version}\n")
        else:
            texts[-1].write_text(f"VALUE = {version}\n")
    texts[0].rename(path)
    edits = f"if number == 1:\n    os.rename({str(texts[1])!r}, {str(path)!r})\n"
    _write(tmp_path / "scripts", "import ahead\nprint(ahead.VALUE)\n")
    runs = run_warm(["train.py"], tmp_path / "scripts", preload=["ahead"], extra=extra, rounds=4, then=edits)
    assert [each.out for each in runs.ranks] == ["1\n", "22\n", "22\n", "22\n"], runs.said
    assert f"{path} has changed since it was imported" in runs.said[0]


@pytest.mark.parametrize("inside", [True, False], ids=["in it", "beside it"])
@pytest.mark.parametrize("kind", ["decimal.py", "decimal/__init__.py"])
def test_of_an_archive_counts_what_is_in_it(tmp_path: Path, kind: str, inside: bool) -> None:
    with zipfile.ZipFile(tmp_path / "train.pyz", "w") as archive:
        archive.writestr("__main__.py", "import decimal, os\nprint(hasattr(decimal, 'own'), os.getpid())\n")
        if inside:
            archive.writestr(kind, "own = True\n")
    if not inside:
        (tmp_path / kind).parent.mkdir(exist_ok=True)
        (tmp_path / kind).write_text("own = True\n")
    runs = run_warm(["train.pyz"], tmp_path, preload=["decimal"])
    (rank,) = runs.ranks
    assert rank.out == f"{inside} {rank.pid}\n"
    assert ["takes the place" in said for said in runs.said] == [True] * inside


def test_a_folder_of_data_hides_no_module(tmp_path: Path) -> None:
    (tmp_path / "decimal").mkdir()
    _write(tmp_path, "import decimal\nprint(decimal.Decimal(1))\n")
    runs = run_warm(["train.py"], tmp_path, preload=["decimal"])
    assert (runs.ranks[0].out, runs.said) == ("1\n", [])


def test_what_libraries_read_when_they_are_imported_must_be_the_same(tmp_path: Path) -> None:
    _write(tmp_path, "import os\nprint(os.environ['OMP_NUM_THREADS'])\n")
    runs = run_warm(["train.py"], tmp_path, ranks=[{}, {"OMP_NUM_THREADS": "7"}])
    assert [(each.out, each.warm) for each in runs.ranks] == [("1\n", True), ("7\n", False)]
    assert "OMP_NUM_THREADS" in runs.said[0]


def test_large_environments_and_odd_bytes_arrive(tmp_path: Path) -> None:
    _write(tmp_path, "import os\nprint(len(os.environ['RUN_LONG']), ascii(os.environb[b'RUN_ODD']))\n")
    long = {"RUN_LONG": "x" * 100_000, "RUN_ODD": b"\xff\xfe".decode("utf-8", "surrogateescape")}
    runs = run_warm(["train.py"], tmp_path, extra=long)
    assert (runs.ranks[0].out, runs.ranks[0].warm) == ("100000 b'\\xff\\xfe'\n", True)


KILL_GATES = """
while not all(gate.stands for gate in starter._gates):
    await asyncio.sleep(0.01)
for gate in starter._gates:
    os.kill(gate.pid, 9)
while any(gate.stands for gate in starter._gates):
    await asyncio.sleep(0.01)
"""
KILL_PARENT = """
lost = starter.parent
if lost is not None:
    os.kill(lost.pid, 9)
    while lost.pid:
        await asyncio.sleep(0.01)
"""


def test_a_gate_that_died_costs_nothing(tmp_path: Path) -> None:
    _write(tmp_path, "print('ran')\n")
    runs = run_warm(["train.py"], tmp_path, ranks=[{}, {}], rounds=2, then=f"if number == 0:{_in(KILL_GATES)}")
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran\n", False)] * 2 + [("ran\n", True)] * 2
    assert runs.left == []


LEARNS_NOW = """
import json
with open("imported.json", "w") as file:
    json.dump([*(f"no{number}" for number in range(30)), "fractions"], file)
starter.learn()
while not starter.report()["learned"]:
    await asyncio.sleep(0.01)
"""


def test_a_parent_that_has_learned_comes_after_the_ranks_that_are_being_started(tmp_path: Path) -> None:
    _write(tmp_path, "import sys\nprint('fractions' in sys.modules)\n")
    then = f"if number == 0:{_in(LEARNS_NOW)}"
    runs = run_warm(["train.py"], tmp_path, preload=None, rounds=2, then=then, learn="imported.json")
    assert [(each.out, each.warm) for each in runs.ranks] == [("False\n", True), ("True\n", True)], runs.said


def test_a_parent_that_died_is_made_once_more(tmp_path: Path) -> None:
    """Its gates stand on their own."""
    _write(tmp_path, "print('ran')\n")
    runs = run_warm(["train.py"], tmp_path, rounds=4, then=KILL_PARENT)
    assert [each.out for each in runs.ranks] == ["ran\n"] * 4
    assert [each.warm for each in runs.ranks] == [True, True, False, False]
    assert "the warm parent died: it was killed by signal 9. Another" in runs.said[0]
    assert len(runs.said) == 2 and "died 2 times, at last: it was killed by signal 9" in runs.said[1]
    assert runs.left == []


def test_the_parent_of_the_next_start_is_there_before_that_begins(tmp_path: Path) -> None:
    _write(tmp_path, "print('ran')\n")
    comes = "while starter.parent is lost or not starter.parent.ready.done():\n    await asyncio.sleep(0.01)\n"
    runs = run_warm(["train.py"], tmp_path, rounds=2, then=f"if number == 0:{_in(KILL_PARENT + comes)}")
    assert [each.warm for each in runs.ranks] == [True, True] and len(runs.said) == 1, runs.said


KILLED_AT_THE_FORK = """
from trainjob.agent.warm.gates import Gates
plain = Gates.stand
async def stand(gates):
    Gates.stand = plain
    pid = starter.parent.pid
    os.kill(pid, 19)
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "T":
        await asyncio.sleep(0.01)
    gates.drop()
    gates.fill(1, starter.parent)
    os.kill(pid, 9)
    await plain(gates)
if number == 0:
    Gates.stand = stand
"""


def test_a_parent_that_dies_as_it_is_to_be_forked_is_told_by_its_end(tmp_path: Path) -> None:
    """As where the kernel takes the memory: its line closes a moment before its end is known."""
    _write(tmp_path, "print('ran')\n")
    runs = run_warm(["train.py"], tmp_path, rounds=3, then=KILLED_AT_THE_FORK)
    assert [(each.out, each.warm) for each in runs.ranks] == [("ran\n", True), ("ran\n", False), ("ran\n", True)]
    assert runs.said == [
        "the warm parent died: it was killed by signal 9. Another one is made",
        "ranks start in a new interpreter: the warm parent died: it was killed by signal 9",
    ]


def _in(text: str) -> str:
    return text.replace("\n", "\n    ")


def test_all_end_with_the_agent(tmp_path: Path) -> None:
    """Ranks, gates and the parent, in the moment in which it is killed: here by its own rank."""
    mark = f"MARK_OF_{tmp_path.name}"
    _write(tmp_path, "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(600)\n")
    with pytest.raises(AssertionError):
        run_warm(["train.py"], tmp_path, extra={mark: "1"}, then="starter.expect(3, 1)\nawait starter.prepare(3)")
    until("nothing of it is left", lambda: not _processes_with(f"{mark}=1".encode()))


def _processes_with(variable: bytes) -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if variable in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(name)
    return found


def test_nothing_is_left_of_ranks_that_are_killed(tmp_path: Path) -> None:
    _write(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")
    runs = run_warm(["train.py"], tmp_path, ranks=[{}, {}], rounds=20)
    assert {(each.status, each.warm) for each in runs.ranks} == {(signal.SIGKILL, True)}, runs.said
    assert len(set(runs.fds[1:])) == 1
    assert runs.left == [] and runs.said == []


def _library() -> list[str]:
    root = Path(__file__).parents[2]
    return [str(root / part) for part in ("operator", "worker-image", "tests")]


def until(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
