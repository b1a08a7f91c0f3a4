"""What a script can see of a process's exit is as under plain Python, although the interpreter is not taken apart.

A small package stands for torch. It keeps an object, of a kind that torch keeps, until Python takes its modules apart:
whether that was told says which way a process has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.ranks import environment
from support.warm_ranks import run_warm
from trainjob.session import short_exit

pytestmark = pytest.mark.slow

APART = "taken apart"
TORCH = f"""
import os
class StorageWeakRef:
    __module__ = "torch.multiprocessing.reductions"
    def __del__(self, write=os.write):
        write(2, b"{APART}\\n")
kept = StorageWeakRef()
held = []
class default_generator:
    seed = staticmethod(lambda: None)
"""
GENERATOR = """
import os
def generator():
    try: yield
    finally: os.write(1, b'finally\\n')
begun = generator(); next(begun)
"""
ASKS = """
import sys
class Goes:
    def __del__(self): print(sys.is_finalizing(), sys.modules.get('os'))
"""
INTERRUPTS = """
import os
class Goes:
    def __del__(self): os.kill(os.getpid(), 2); os.write(1, b'goes on')
"""
GOES = """class Goes:
    def __del__(self): os.write(1, b'goes\\n')
"""
SCRIPTS = {
    "the end": "print('done')",
    "a number": "sys.exit(3)",
    "words": "sys.exit('words')",
    "a large number": "sys.exit(256)",
    "a number beyond all": "sys.exit(2**70)",
    "an exception": "raise ValueError('bad batch')",
    "a file that was left open": "file = open('left', 'w'); file.write('all of it')",
    "a binary file that was left open": "file = open('left', 'wb'); file.write(b'all of it')",
    "a file that a library holds": "torch.held.append(open('left', 'w')); torch.held[0].write('all of it')",
    "a file in a circle": "circle = [open('left', 'w')]; circle.append(circle); circle[0].write('all'); del circle",
    "an archive that is not finished": "import tarfile; os.utime('beside.py', (1, 1)); tar = tarfile.open('left', 'w'); tar.add('beside.py')",
    "what a library is to compress": """
        import bz2
        torch.held.append(bz2.open('left.bz2', 'wb')); torch.held[0].write(b'all of it')
        """,
    "a database that a library holds": """
        import sqlite3
        base = sqlite3.connect('left'); base.execute('pragma journal_mode=wal'); base.execute('create table t(x)')
        base.commit(); torch.held.append(base)
        """,
    "a file below a failure": "file = open('left', 'w'); file.write('all of it'); raise ValueError('bad batch')",
    "what C has printed": "import ctypes; ctypes.CDLL(None).puts(b'from C')",
    "an object of the script": """
        class Goes:
            def __init__(self, name): self.name = name
            def __del__(self): print(self.name, 'goes in', os.path.basename(os.getcwd())[:0], helper())
        def helper(): return 'with help'
        one, _two = Goes('one'), Goes('two')
        held = {'three': Goes('three')}
        def closure(four=Goes('four')): return four
        """,
    "an object that a library holds": f"{GOES}torch.held.append(Goes())",
    "an object of a function that a library holds": f"{GOES}one = Goes()\ndef of_mine(): return one\ntorch.held.append(of_mine)",
    "an object of a function that a signal calls": f"""{GOES}one = Goes()
def stop(*_): return one
import signal; signal.signal(signal.SIGTERM, stop)
""",
    "an object that is kept for the exit": f"{GOES}import atexit; atexit.register(id, Goes())",
    "an object of another's": f"{GOES}import builtins; builtins.one = Goes()",
    "an object whose class answers nothing": """
        class Class(type):
            @property
            def __module__(cls): raise RuntimeError
        class Goes(metaclass=Class): pass
        torch.held.append(Goes())
        """,
    "a generator that a library holds": """
        def of_mine():
            try: yield
            finally: os.write(1, b'finally')
        torch.held.append(of_mine()); next(torch.held[0])
        """,
    "a generator of an installed package": f"""
        with open(os.path.dirname(os.path.dirname(torch.__file__)) + '/installed.py', 'w') as file: file.write({GENERATOR!r})
        import installed
        """,
    "a generator of a folder whose name ends like that of installed packages": f"""
        os.mkdir('my-packages')
        with open('my-packages/mine.py', 'w') as file: file.write({GENERATOR!r})
        sys.path.append('my-packages'); import mine
        """,
    "a generator that has nothing to do any more": """
        def of_mine():
            while True: yield
        mine = of_mine(); next(mine)
        """,
    "a database of a kind of one's own": """
        import sqlite3
        class Mine(sqlite3.Connection): pass
        base = sqlite3.connect('left', factory=Mine); base.execute('pragma journal_mode=wal')
        base.execute('create table t(x)'); base.commit(); torch.held.append(base)
        """,
    "an object that asks whether Python ends": """
        class Goes:
            def __del__(self): print(sys.is_finalizing(), 'os' in sys.modules)
        one = Goes()
        """,
    "an object that imports": """
        class Goes:
            def __del__(self):
                import json; print(json.dumps(1))
        one = Goes()
        """,
    "an object that looks at who calls it": """
        class Goes:
            def __del__(self):
                try: print(sys._getframe(1).f_code.co_name)
                except ValueError: print('nobody')
        one = Goes()
        """,
    "an installed object that asks whether Python ends": f"""
        with open(os.path.dirname(os.path.dirname(torch.__file__)) + '/installed.py', 'w') as file: file.write({ASKS!r})
        import installed
        one = installed.Goes()
        """,
    "objects in their order": """
        import builtins
        class Goes:
            def __init__(self, name): self.name = name
            def __del__(self): os.write(1, self.name)
        one, _two, three = Goes(b'one'), Goes(b'two'), Goes(b'three')
        builtins.held = sys.modules['__main__']
        """,
    "an interrupt while an object goes": f"""
        with open(os.path.dirname(os.path.dirname(torch.__file__)) + '/installed.py', 'w') as file: file.write({INTERRUPTS!r})
        import installed
        one = installed.Goes()
        """,
    "what is called when a library's object is gone": """
        import weakref
        class Thing: pass
        thing = Thing()
        torch.held += [weakref.ref(thing, lambda reference: os.write(1, b'gone')), thing]; del thing
        """,
    "a timer that would call the script": """
        import threading
        timer = threading.Timer(600, lambda: None); timer.daemon = True; timer.start()
        """,
    "warnings of some files": "import warnings; warnings.filterwarnings('always', message='unclosed'); torch.held.append(open('left', 'w'))",
    "who is called when garbage is collected": "import gc; gc.callbacks.append(lambda phase, _: os.write(1, phase.encode()))",
    "a coroutine that was not awaited": "async def of_mine(): pass\nmine = of_mine()",
    "a task that was not awaited": """
        import asyncio
        async def long(): await asyncio.sleep(100)
        async def main():
            global task; task = asyncio.ensure_future(long()); await asyncio.sleep(0)
        loop = asyncio.new_event_loop(); loop.run_until_complete(main())
        """,
    "warnings": "import warnings; warnings.simplefilter('always'); torch.held.append(open('left', 'w'))",
    "an object that prints where the script has printed elsewhere": """
        class Goes:
            def __del__(self): print('goes')
        one = Goes(); sys.stdout = open('left', 'w')
        """,
    "what is not collected": f"{GOES}import gc; one = Goes(); left = open('left', 'w'); left.write('x'); gc.freeze()",
    "a thread that imports what goes": """
        import threading, time
        class Goes:
            def __del__(self): time.sleep(0.3)
        import beside
        one = Goes()
        def on():
            while True:
                import beside
                time.sleep(0.001)
        threading.Thread(target=on, daemon=True).start()
        """,
    "an object in a circle": """
        class Goes:
            def __del__(self): print('goes', os.sep)
        one = Goes(); one.self = one
        """,
    "an object of a module beside it": "import beside",
    "an object that a library holds the module of": "import beside; torch.held.append(beside)",
    "an object that prints an error": """
        class Goes:
            def __del__(self): raise ValueError('while it goes')
        one = Goes()
        """,
    "what is to be done at exit": """
        import atexit, weakref
        atexit.register(print, 'first, so last')
        class Thing: pass
        thing = Thing()
        weakref.finalize(thing, print, 'finalized')
        atexit.register(print, 'last, so first')
        """,
    "a failure at exit": "import atexit; atexit.register(lambda: 1 / 0)",
    "a temporary folder": """
        import tempfile
        folder = tempfile.TemporaryDirectory(dir='.', prefix='temporary-')
        """,
    "a thread that is waited for": """
        import threading, time
        def late():
            time.sleep(0.3); print('late')
        threading.Thread(target=late).start()
        """,
    "a thread that is not": """
        import threading, time
        def on():
            while True: time.sleep(0.001)
        threading.Thread(target=on, daemon=True).start()
        """,
    "an executor": """
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor().submit(print, 'in a thread')
        """,
    "a child that goes on": """
        if os.fork() == 0:
            kept = open('of the child', 'w'); kept.write('all of it')
        else:
            os.wait()
        """,
    "children of multiprocessing": """
        import multiprocessing
        if __name__ == '__main__':
            with multiprocessing.get_context('fork').Pool(2) as pool:
                print(pool.map(abs, [-1, -2]))
            queue = multiprocessing.get_context('fork').Queue(); queue.put(1)
        """,
    "a closed stream": "sys.stdout.close()",
    "a stream that nobody takes": "print('lost'); os.close(1)",
    "a signal": "import signal; os.kill(os.getpid(), signal.SIGTERM)",
    "its own way": "os._exit(5)",
    "a hook that fails": "sys.excepthook = lambda *error: 1 / 0\nraise ValueError('bad batch')",
    "a hook that says how to end": "sys.excepthook = lambda *error: sys.exit(7)\nraise ValueError('bad batch')",
    "no hook": "sys.excepthook = None\nraise ValueError('bad batch')",
    "a hook that is gone": "del sys.excepthook\nraise ValueError('bad batch')",
    "what has ended the script, for what is done at exit": """
        import atexit
        atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
        raise ValueError('bad batch')
        """,
    "what was printed, before what is done at exit": "import atexit; atexit.register(os.write, 1, b'later\\n'); print('first')",
    "what was printed, before a thread ends": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.3), os.write(1, b'later\\n'))).start()
        print('first'); sys.exit(3)
        """,
    "no stream": "del sys.stdout",
    "a hook": "sys.excepthook = lambda *error: print('hooked', error[0].__name__); raise ValueError('bad batch')",
}
PYTHONS_OWN = {
    "a generator of an installed package",
    "a generator of a folder whose name ends like that of installed packages",
    "a database of a kind of one's own",
    "an object of the script",
    "an object that prints where the script has printed elsewhere",
    "an object in a circle",
    "an object of a module beside it",
    "an object that a library holds the module of",
    "an object that prints an error",
    "an object that asks whether Python ends",
    "an object that imports",
    "an object that looks at who calls it",
    "objects in their order",
    "what is called when a library's object is gone",
    "a timer that would call the script",
    "warnings of some files",
    "who is called when garbage is collected",
    "a hook that says how to end",
    "no stream",
    "what a library is to compress",
    "a database that a library holds",
    "an object that a library holds",
    "an object of a function that a library holds",
    "an object of a function that a signal calls",
    "an object that is kept for the exit",
    "an object of another's",
    "an object whose class answers nothing",
    "a generator that a library holds",
    "warnings",
    "what is not collected",
    "a thread that imports what goes",
    "a thread that is not",
    "a stream that nobody takes",
    "a child that goes on",
}
"""Which Python ends itself, or one process of which."""
NEITHER = {"a signal", "its own way", "an interrupt while an object goes"}
BEGIN = "import os, sys, torch\n"


def written(folder: Path, script: str) -> dict[str, str]:
    """Everything in place; the variables of a process that runs it."""
    lib = folder / "lib" / "site-packages"
    (lib / "torch").mkdir(parents=True)
    (lib / "torch" / "__init__.py").write_text(TORCH)
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text(BEGIN + textwrap.dedent(script).strip("\n") + "\n")
    (folder / "job" / "beside.py").write_text(
        "import os\nclass Goes:\n    def __del__(self): print('beside goes', os.sep)\none = Goes()\n"
    )
    paths = environment({}).get("PYTHONPATH", "").split(os.pathsep)
    return {**environment({}), "PYTHONPATH": os.pathsep.join([str(lib), *paths]), "PYTHONUNBUFFERED": ""}


class Ended:
    """How a process ended, and what it left."""

    def __init__(self, folder: Path, status: int, out: str) -> None:
        self.status = status
        self.apart = APART in out
        # Where Python has taken itself apart it shows no lines of code any more.
        lines = [line for line in out.splitlines() if line != APART and not line.startswith("    ")]
        text = re.sub(r"0x[0-9a-f]+", "0x", "\n".join(lines).replace(str(folder), ""))
        # Python 3.13 says of a number that it cannot hold where it came upon it.
        self.out = re.sub(r"(?s)(Exception ignored on threading shutdown:).*", r"\1", text)
        self.left = {
            path.name: path.read_bytes()
            for path in sorted((folder / "job").iterdir())
            if path.is_file() and path.suffix != ".py"
        }
        self.folders = [path.name for path in (folder / "job").glob("temporary-*")]

    @property
    def seen(self) -> tuple[object, ...]:
        return self.status, self.out, self.left, self.folders


def ended(folder: Path, script: str, *boot: str, **more: str) -> Ended:
    environ = {**written(folder, script), **more}
    words = [sys.executable, *boot, "train.py"]
    with (folder / "out").open("wb") as output:
        done = subprocess.run(
            words, cwd=folder / "job", env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            timeout=HANG_S, check=False,
        )  # fmt: skip
    return Ended(folder, done.returncode, (folder / "out").read_text())


RANK = ("-m", "trainjob.session.rank", "--")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rank_ends_as_a_script_ends(tmp_path: Path, name: str) -> None:
    plain, rank = ended(tmp_path / "plain", SCRIPTS[name]), ended(tmp_path / "rank", SCRIPTS[name], *RANK)
    assert rank.seen == plain.seen
    if name not in NEITHER:
        assert plain.apart, "Python takes itself apart"
        assert rank.apart is (name in PYTHONS_OWN)


def test_a_fork_does_too(tmp_path: Path) -> None:
    """All of them one after the other take a parent each."""
    names = [name for name in SCRIPTS if name not in {*NEITHER, "a stream that nobody takes", "a child that goes on"}]

    def one(name: str) -> tuple[str, Ended, Ended]:
        plain = ended(tmp_path / name / "plain", SCRIPTS[name])
        folder = tmp_path / name / "fork"
        extra = {key: value for key, value in written(folder, SCRIPTS[name]).items() if key.startswith("PYTHON")}
        runs = run_warm(["train.py"], folder / "job", preload=["torch"], extra=extra)
        assert runs.ranks[0].warm, runs.said
        shutil.rmtree(folder / "job" / "place of ranks")
        return name, plain, Ended(folder, runs.ranks[0].status, runs.ranks[0].out)

    with ThreadPoolExecutor(2) as pool:
        for name, plain, fork in pool.map(one, names):
            assert (fork.out, fork.left, fork.folders) == (plain.out, plain.left, plain.folders), name
            assert (fork.status == 0) == (plain.status == 0), name
            assert fork.apart is (name in PYTHONS_OWN), name


AHEAD = """
import os
class Goes:
    def __del__(self): os.write(1, b'goes\\n')
one = Goes()
"""


def test_what_is_imported_ahead_goes_as_it_does_in_a_new_interpreter(tmp_path: Path) -> None:
    """A fork's collector does not know it."""
    extra = {key: value for key, value in written(tmp_path, "import ahead").items() if key.startswith("PYTHON")}
    (tmp_path / "lib" / "site-packages" / "ahead.py").write_text(AHEAD)
    runs = run_warm(["train.py"], tmp_path / "job", preload=["torch", "ahead"], extra=extra)
    (rank,) = runs.ranks
    assert rank.warm and "goes" in rank.out.splitlines(), runs.said


def test_the_file_in_which_a_group_has_met_is_removed(tmp_path: Path) -> None:
    """Who meets there again, as the next attempt does, would wait for ever else."""
    pytest.importorskip("torch.distributed")
    (tmp_path / "train.py").write_text(MEETS)
    words = [sys.executable, *RANK, "train.py"]
    subprocess.run(words, cwd=tmp_path, env=environment({}), stdin=subprocess.DEVNULL, timeout=HANG_S, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


MEETS = """
import os, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
dist.barrier()
assert os.path.exists("meeting")
"""
LIBRARY = """
import os, weakref
class Library: pass
def _del_library(): os.write(1, b"an operator is undone\\n")
def finish(): os.write(1, b"finished\\n")
libraries = [Library(), Library()]
weakref.finalize(libraries[0], _del_library)
weakref.finalize(libraries[1], finish)
"""


def test_what_torch_would_only_undo_is_left_out_in_forks(tmp_path: Path) -> None:
    extra = {key: value for key, value in written(tmp_path, "import torch.library").items() if key.startswith("PYTHON")}
    (tmp_path / "lib" / "site-packages" / "torch" / "library.py").write_text(LIBRARY)
    runs = run_warm(["train.py"], tmp_path / "job", preload=["torch", "torch.library"], extra=extra)
    assert [(each.warm, each.out) for each in runs.ranks] == [(True, "finished\n")], runs.said


def test_an_interrupt_is_pythons_own(tmp_path: Path) -> None:
    plain = ended(tmp_path / "plain", "raise KeyboardInterrupt")
    rank = ended(tmp_path / "rank", "raise KeyboardInterrupt", *RANK)
    assert (rank.status, rank.apart) == (plain.status, plain.apart) == (-2, True)


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("pass", {"LD_PRELOAD": "libm.so.6"}),
        ("pass", {"LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": "debug"}),
        ("sys.setprofile(lambda *_: None)", {}),
        ("sys.settrace(lambda *_: None)", {}),
        ("pass", {"PYTHONDEVMODE": "1"}),
        ("pass", {"PYTHONVERBOSE": "1"}),
        ("pass", {"PYTHONINSPECT": "1"}),
        ("import ctypes; ctypes.CDLL(os.path.join(os.getcwd(), '..', 'libof_mine.so'))", {}),
        ("import ctypes; ctypes.CDLL(os.path.join(os.getcwd(), '..', 'of_mine'))", {}),
        ("import gc; gc.set_debug(gc.DEBUG_UNCOLLECTABLE)", {}),
    ],
)
def test_where_more_may_happen_at_exit_python_goes_its_own_way(
    tmp_path: Path, script: str, more: dict[str, str]
) -> None:
    (tmp_path / "rank").mkdir()
    with open("/proc/self/maps") as maps:
        libm = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)
    for name in ("libof_mine.so", "of_mine"):
        shutil.copy(libm, tmp_path / "rank" / name)
    found = ended(tmp_path / "rank", script, *RANK, **more)
    assert found.apart and found.status == 0, found.out


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("usr/lib/x86_64-linux-gnu/libc.so.6", True),
        ("usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30", True),
        ("lib64/ld-linux-x86-64.so.2", True),
        ("lib/x86_64-linux-gnu/ld-2.31.so", True),
        ("usr/lib64/libgcc_s-11-20231218.so.1", True),
        ("opt/conda/lib/libiomp5.so", True),
        ("home/me/build/libutil.so", False),
        ("home/me/build/plugin.bin", False),
        ("lib/x86_64-linux-gnu/libm-2.31.so", True),
        ("opt/python/lib/python3.12/lib-dynload/_ssl.cpython-312-x86_64-linux-gnu.so", True),
        ("opt/python/lib/libpython3.11.so.1.0", True),
        ("venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", True),
        ("venv/lib/python3.11/site-packages/numpy.libs/libgfortran-040039e1.so.5.0.0", True),
        ("usr/lib/python3/dist-packages/yaml/_yaml.cpython-311-x86_64-linux-gnu.so", True),
        ("venv/lib/python3.11/site-packages/81d243bd2c585b0f4821__mypyc.cpython-311-x86_64-linux-gnu.so", True),
        ("venv/lib/python3.11/site-packages/h5py/h5.cpython-311-x86_64-linux-gnu.so", False),
        ("venv/lib/python3.11/site-packages/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", False),
        ("venv/lib/python3.11/site-packages/_cffi_backend.cpython-311-x86_64-linux-gnu.so", False),
        ("usr/lib/x86_64-linux-gnu/libhdf5.so.103", False),
        ("usr/lib/x86_64-linux-gnu/libc10.so", False),
        ("usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)", False),
        ("home/me/build/libmine.so", False),
    ],
)
def test_which_libraries_are_known_to_leave_nothing_for_the_exit(path: str, known: bool) -> None:
    assert short_exit.is_known(path) is known
