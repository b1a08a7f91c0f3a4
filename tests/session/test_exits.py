"""Folders that a module makes when it is imported, and takes away at exit: forks of a warm parent would share them."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing.util
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainjob.session.warm import exits


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """TMPDIR; `own` can be imported, and does at exit nothing here."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "libraries").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    weakref.finalize(test_a_process_that_is_of_no_use_leaves_no_folder, int).detach()  # the first one registers for all
    monkeypatch.setattr(atexit, "register", lambda call, *arguments, **named: call)
    monkeypatch.setattr(multiprocessing.util, "_finalizer_registry", {})
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_config", {**process._config, "tempdir": None})  # type: ignore[attr-defined]
    yield tmp_path / "tmp"
    sys.modules.pop("own", None)


def taken_away(tmp: Path, text: str) -> str | None:
    """By what is registered while a module with this text is imported."""
    (tmp.parent / "libraries" / "own.py").write_text(f"import atexit, functools, os, shutil, tempfile\n{text}\n")
    acts, plain = exits.Acts(), atexit.register
    with acts.watched():
        importlib.import_module("own")
    assert atexit.register is plain
    return acts.taken_away()


@pytest.mark.parametrize(
    "text",
    [
        "folder = tempfile.TemporaryDirectory()",
        "folder = tempfile.TemporaryDirectory()\natexit.register(folder.cleanup)",
        "folder = tempfile.mkdtemp()\natexit.register(shutil.rmtree, folder, ignore_errors=True)",
        "folder = tempfile.mkdtemp()\natexit.register(functools.partial(shutil.rmtree, folder))",
        "folder = tempfile.mkdtemp()\natexit.register(lambda: shutil.rmtree(folder))",
        "folders = [tempfile.mkdtemp()]\n@atexit.register\ndef clean():\n    for each in folders: shutil.rmtree(each)",
        "def begin():\n    folder = tempfile.mkdtemp()\n    atexit.register(lambda: os.rmdir(folder))\nbegin()",
        "handle, path = tempfile.mkstemp()\nos.close(handle)\natexit.register(os.unlink, path=path)",
        "class Cache:\n    def __init__(self):\n        self.kept = tempfile.mkdtemp()\n"
        "        atexit.register(self.clean)\n    def clean(self): shutil.rmtree(self.kept)\ncache = Cache()",
        "class Cache:\n    def __init__(self):\n        self.kept = [tempfile.mkdtemp()]\n"
        "        atexit.register(lambda: self.clean())\n    def clean(self): shutil.rmtree(*self.kept)\nCache()",
        "folders = {'one': tempfile.mkdtemp()}\natexit.register(lambda: [os.rmdir(each) for each in folders.values()])",
        "import collections\nfolders = collections.defaultdict(str, one=tempfile.mkdtemp())\n"
        "atexit.register(lambda: os.rmdir(folders['one']))",
        "folder = tempfile.mkdtemp()\nclean = lambda: os.rmdir(folder)\n@atexit.register\ndef end(): clean()",
        "folder = tempfile.mkdtemp()\ndef end(*, of=folder): os.rmdir(of)\natexit.register(end)",
        "from multiprocessing import util\nutil.get_temp_dir()",
        "class Cache:\n    kept = tempfile.mkdtemp()\n    @classmethod\n    def clean(cls): shutil.rmtree(cls.kept)\n"
        "atexit.register(Cache.clean)",
        "class Cache:\n    kept = tempfile.mkdtemp()\n    def clean(self): shutil.rmtree(self.kept)\n"
        "atexit.register(Cache().clean)",
        "class Cache:\n    one = None\n    def __init__(self): self.kept = tempfile.mkdtemp()\n"
        "Cache.one = Cache()\natexit.register(lambda: shutil.rmtree(Cache.one.kept))",
        "class Cache:\n    __slots__ = ('kept', 'empty')\n    def __init__(self): self.kept = tempfile.mkdtemp()\n"
        "    def clean(self): shutil.rmtree(self.kept)\natexit.register(Cache().clean)",
        "import types\nsettings = types.ModuleType('own.settings')\nsettings.folder = tempfile.mkdtemp()\n"
        "atexit.register(lambda: shutil.rmtree(settings.folder))",
        "import contextlib\nstack = contextlib.ExitStack()\nstack.callback(shutil.rmtree, tempfile.mkdtemp())\n"
        "atexit.register(stack.close)",
        "import contextlib\n@contextlib.contextmanager\ndef own():\n    folder = tempfile.mkdtemp()\n    yield folder\n"
        "    shutil.rmtree(folder)\nstack = contextlib.ExitStack()\nstack.enter_context(own())\n"
        "atexit.register(stack.close)",
        "folders = [f'/none/{number}' for number in range(20)] + [tempfile.mkdtemp()]\n"
        "atexit.register(lambda: [shutil.rmtree(each, True) for each in folders])",
    ],
)
def test_what_goes_at_exit_is_seen(tmp: Path, text: str) -> None:
    found = taken_away(tmp, text)
    assert found is not None and [found] == list(map(str, tmp.iterdir()))


@pytest.mark.parametrize(
    "text",
    [
        "folder = tempfile.mkdtemp()",
        "with tempfile.TemporaryDirectory() as folder: pass\natexit.register(print, folder)",
        "folder = tempfile.mkdtemp()\natexit.register(print, 'bye', tempfile.gettempdir(), __file__)",
        "class Odd:\n    def __getattribute__(self, name): 1 / 0\n    def __eq__(self, other): 1 / 0\n"
        "    def __hash__(self): 1 / 0\n    def __call__(self): pass\nodd = Odd()\natexit.register(odd)\n"
        "atexit.register(lambda: odd)",
        "for name in ('one', 'two'): os.mkdir(os.path.join(tempfile.gettempdir(), name))\n"
        "class Own:\n    __slots__ = ('empty',)\n    folder = property(lambda self: 1 / 0)\n    def clean(self): self.folder\n"
        "atexit.register(Own().clean)",
    ],
    ids=[
        "a cache that stays",
        "one that is gone",
        "another path",
        "an object that answers nobody",
        "one without a path",
    ],
)
def test_what_stays_or_is_gone_is_nobodys_business(tmp: Path, text: str) -> None:
    assert taken_away(tmp, text) is None


def test_a_folder_from_before_is_not_the_modules(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp / "older").mkdir()
    made = (tmp / "older").lstat().st_ctime_ns
    monkeypatch.setattr(exits, "COARSE_NS", -1)
    with monkeypatch.context() as patched:
        patched.setattr(exits.time, "time_ns", lambda: made)
        assert taken_away(tmp, "atexit.register(shutil.rmtree, os.path.join(tempfile.gettempdir(), 'older'))") is None


def test_where_nothing_is_registered_no_folder_is_needed(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have none that can be written to."""

    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert taken_away(tmp, "atexit.register(print, __file__ + 'x')\natexit.register(print, __file__)") is None


@pytest.mark.parametrize(
    "text",
    [
        "folder = tempfile.TemporaryDirectory(dir=elsewhere)",
        "folder = os.path.join(elsewhere, 'own')\nos.mkdir(folder)\natexit.register(shutil.rmtree, folder, True)",
        "folder = os.path.join(elsewhere, 'own')\nos.mkdir(folder)\n@atexit.register\ndef clean(): shutil.rmtree(folder)",
        "folder = os.path.join(elsewhere, 'own')\nos.mkdir(folder)\n"
        "atexit.register(functools.partial(shutil.rmtree, folder))",
        "import pathlib\nfile = pathlib.Path(elsewhere, 'own')\nfile.touch()\natexit.register(file.unlink)",
    ],
)
def test_what_surely_goes_is_seen_wherever_it_lies(tmp: Path, text: str) -> None:
    (tmp.parent / "cache").mkdir()
    found = taken_away(tmp, f"elsewhere = {str(tmp.parent / 'cache')!r}\n{text}")
    assert found is not None and [found] == list(map(str, (tmp.parent / "cache").iterdir()))


def test_what_goes_with_an_object_is_seen(tmp: Path) -> None:
    """Python lets them all go at its exit."""
    text = "class Own:\n    def __init__(self): self.folder = tempfile.mkdtemp()\n    def __del__(self): shutil.rmtree(self.folder)\n"
    text += "class More(Own): pass\nown, no_more = More(), None\n"
    (tmp.parent / "libraries" / "own.py").write_text(f"import shutil, tempfile\n{text}")
    acts = exits.Acts()
    own = importlib.import_module("own")
    assert acts.taken_with([]) is acts.taken_with([own, own.no_more, own.More, 1]) is None
    assert [acts.taken_with([own, own.own])] == list(map(str, tmp.iterdir()))


def test_what_goes_from_the_working_folder_is_seen(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp.parent)
    assert taken_away(tmp, "open('lock', 'x').close()\natexit.register(os.remove, 'lock')") == "lock"


def test_an_older_folder_is_none_that_was_made(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes something in it gives it a new time; a plain rank takes it away, too."""
    (tmp / "older" / "inside").mkdir(parents=True)
    made = (tmp / "older" / "inside").lstat().st_ctime_ns
    monkeypatch.setattr(exits, "COARSE_NS", -1)
    text = f"folder = {str(tmp / 'older')!r}\nos.mkdir(folder + '/new')\natexit.register(lambda: shutil.rmtree(folder))"
    with monkeypatch.context() as patched:
        patched.setattr(exits.time, "time_ns", lambda: made)
        assert taken_away(tmp, text) is None


class _WholeSeconds:
    """Of an entry, as a file system has it that knows no parts of them."""

    def __init__(self, found: os.stat_result) -> None:
        self._found = found
        self.st_ctime_ns = found.st_ctime_ns // 10**9 * 10**9

    def __getattr__(self, name: str) -> object:
        return getattr(self._found, name)


def test_a_folder_on_a_file_system_of_whole_seconds_is_seen(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre: what was made after this began has a time from before."""
    plain, now = os.lstat, time.time_ns()
    monkeypatch.setattr(os, "lstat", lambda path, **more: _WholeSeconds(plain(path, **more)))
    with monkeypatch.context() as patched:
        patched.setattr(exits.time, "time_ns", lambda: now - now % 10**9 + 600 * 10**6)
        assert taken_away(tmp, "atexit.register(shutil.rmtree, tempfile.mkdtemp())") is not None


def test_of_what_is_registered_later_nothing_is_kept(tmp: Path) -> None:
    """A module may have `atexit.register` under a name of its own, and objects of it end their own acts."""
    assert taken_away(tmp, "from atexit import register\nclass Writer: pass") is None
    own = sys.modules["own"]
    writer = own.Writer()
    own.register(print, writer)
    gone = weakref.ref(writer)
    del writer
    assert gone() is None


def test_a_process_that_is_of_no_use_leaves_no_folder(tmp: Path) -> None:
    (tmp.parent / "libraries" / "own.py").write_text(
        "import atexit, shutil, tempfile\nfolder = tempfile.TemporaryDirectory()\n"
        "atexit.register(shutil.rmtree, tempfile.mkdtemp())\n"
    )
    before = tempfile.TemporaryDirectory()
    acts = exits.Acts()
    with acts.watched():
        importlib.import_module("own")
    assert len(list(tmp.iterdir())) == 3
    acts.undo()
    assert [str(each) for each in tmp.iterdir()] == [before.name]
    before.cleanup()


def test_a_process_that_is_of_no_use_takes_nothing_older_away(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rank that trains meanwhile, say, which has imported the same."""
    (tmp / "shared").mkdir()
    made = (tmp / "shared").lstat().st_ctime_ns
    monkeypatch.setattr(exits, "COARSE_NS", -1)
    (tmp.parent / "libraries" / "own.py").write_text(
        f"import atexit, os, shutil\nfolder = {str(tmp / 'shared')!r}\nos.makedirs(folder, exist_ok=True)\n"
        "atexit.register(shutil.rmtree, folder)\n"
    )
    with monkeypatch.context() as patched:
        patched.setattr(exits.time, "time_ns", lambda: made)
        acts = exits.Acts()
    with acts.watched():
        importlib.import_module("own")
    acts.undo()
    assert (tmp / "shared").is_dir()
