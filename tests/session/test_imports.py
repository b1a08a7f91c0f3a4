"""What the session may import, and on which Python."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import trainjob
from support.oldest_python import oldest_python
from support.patience import HANG_S
from support.ranks import ROOT, environment

OLD_PYTHON_FILES = [
    path
    for folder in ("session", "torch", "compat")
    for path in sorted((ROOT / "worker-image" / "trainjob" / folder).rglob("*.py"))
] + sorted((ROOT / "worker-image" / "trainjob").glob("*.py"))


@pytest.mark.parametrize("path", OLD_PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT / "worker-image")))
def test_it_parses_as_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body), (
        "annotations must not be evaluated"
    )


@pytest.mark.slow
def test_it_imports_on_python_3_9() -> None:
    python = oldest_python()
    code = (
        "import trainjob.session.rank, trainjob.torch, trainjob; trainjob.report; trainjob.Checkpoint; "
        "trainjob.prepare_model; trainjob.collective.barrier"
    )
    done = subprocess.run([python, "-c", code], env=environment({}), capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr


def test_a_ranks_boot_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, trainjob.session.rank, trainjob.session.calls; "
        "print('\\n'.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment({}), capture_output=True, text=True, timeout=HANG_S, check=True
    )
    foreign = (
        set(done.stdout.split())
        - set(sys.stdlib_module_names)
        - {"trainjob", "trainjob_api", "__main__", "__mp_main__", "_distutils_hack", "sitecustomize"}
    )
    assert {name for name in foreign if not name.startswith("_")} == set()


def test_all_names_are_there_and_a_wrong_one_names_the_nearest() -> None:
    assert set(trainjob.__all__) <= set(dir(trainjob))
    with pytest.raises(AttributeError, match="did you mean 'report'"):
        trainjob.reprt  # noqa: B018


def test_the_nearest_name_is_told_once() -> None:
    """Python guesses too, where an error ends the program."""
    done = subprocess.run(
        [sys.executable, "-c", "import trainjob; trainjob.reprt"],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 1 and done.stderr.rstrip().endswith("did you mean 'report'?")
    assert done.stderr.lower().count("did you mean") == 1


@pytest.mark.parametrize(
    ("module", "wrong", "right"),
    [
        ("trainjob", "Chekpoint", "Checkpoint"),
        ("trainjob.errors", "StorageEror", "StorageError"),
        ("trainjob.torch", "prepare_modell", "prepare_model"),
        ("trainjob.collective", "barier", "barrier"),
        ("trainjob.trackers", "CSVLoger", "CSVLogger"),
    ],
)
def test_a_slip_in_an_import_names_the_right_one(module: str, wrong: str, right: str) -> None:
    """`from ... import` drops what an AttributeError says, and Python 3.11 guesses nothing."""
    with pytest.raises(ImportError, match=f"cannot import name '{wrong}' from '{module}'; did you mean '{right}'"):
        exec(f"from {module} import {wrong}")
    found = import_module(module)
    assert not hasattr(found, wrong) and getattr(found, wrong, None) is None
    with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
        getattr(found, wrong)
    with pytest.raises(ImportError, match="quitesomethingelse"):
        exec(f"from {module} import quitesomethingelse")
