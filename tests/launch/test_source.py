"""What a launcher reads of a training function's source, for agents that cannot: whether its ranks may be forks, and of
what.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainjob.agent.warm import choice
from trainjob.launch.handover import source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        del sys.modules[name]


def loop(folder: Path, name: str, **texts: str) -> Any:
    """The function `train` of that module; `a__b="..."` is a/b.py."""
    for path, text in texts.items():
        file = folder.joinpath(*path.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return importlib.import_module(name).train


TRAIN = "def train():\n    from torch import optim\n"


def test_of_a_function_its_module_is_read(folder: Path) -> None:
    train = loop(folder, "mine", mine=TRAIN)
    expected = {"doubt": None, "modules": [*choice.AUTO], "sets_variables": False, "serves": None}
    assert source.read(train, framework="torch") == expected
    assert source.read(functools.partial(train), framework="torch") == expected


def test_of_a_function_of_a_script_whose_process_is_ours_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A validation that calls fit(): `__main__` is our process there, and the script's file is elsewhere."""
    ours = importlib.import_module("trainjob.launch.validation.child")
    monkeypatch.setitem(sys.modules, "__main__", ours)
    train = types.FunctionType((lambda: None).__code__, {"__name__": "__main__"}, "train")
    assert source.read(train, framework="torch") is None


@pytest.mark.parametrize("framework", ["torch", "jax", ""])
def test_a_rank_with_a_process_group_imports_torch_whatever_the_function_does(folder: Path, framework: str) -> None:
    found = source.read(loop(folder, "mine", mine="def train():\n    pass\n"), framework=framework)
    assert found is not None and found["modules"] == ([*choice.TORCH] if framework == "torch" else [])


@pytest.mark.parametrize("where", ["mine", "beside", "package"])
def test_what_sets_a_variable_too_late_is_a_doubt(folder: Path, where: str) -> None:
    sets = "import os\ndef use():\n    os.environ['OMP_NUM_THREADS'] = '1'\n"
    if where == "mine":
        train = loop(folder, "mine", mine=sets + TRAIN)
    elif where == "beside":
        train = loop(folder, "mine", mine="import helper\n" + TRAIN, helper=sets)
    else:
        train = loop(folder, "parts.mine", parts__mine="from parts import helper\n" + TRAIN, parts__helper=sets)
    found = source.read(train, framework="torch")
    assert found is not None and "OMP_NUM_THREADS" in (found["doubt"] or "") and found["sets_variables"]


def test_a_script_that_calls_fit_is_read_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "script.py").write_text("import helper\n")
    (folder / "helper.py").write_text("import sys\nsys.path.insert(0, 'x')\n")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(folder / "script.py"), __spec__=None)
    monkeypatch.setitem(sys.modules, "__main__", main)

    def train() -> None: ...

    train.__module__ = "__main__"
    found = source.read(train, framework="torch")
    assert found is not None and "sys.path" in (found["doubt"] or "")
    del main.__file__  # a notebook
    assert source.read(train, framework="torch") is None


def test_of_an_installed_package_nothing_is_known(folder: Path) -> None:
    (folder / "site-packages").mkdir()
    sys.path.insert(0, str(folder / "site-packages"))
    try:
        assert source.read(loop(folder / "site-packages", "installed", installed=TRAIN), framework="torch") is None
    finally:
        sys.path.remove(str(folder / "site-packages"))
