"""What is read of a script before it runs: its own text, and that of the modules beside it that it imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainjob.agent.warm.script import Script
from trainjob_api import contract

SCRIPT = ["python", "train.py"]
MODULE = ["python", "-m", "package.train"]


def write(root: Path, **files: str) -> None:
    """`a__b="..."` is a/b.py."""
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path, words: list[str]) -> set[str]:
    return {text.decode() for text in Script(words, str(root)).texts()}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import helper", {"helper"}),
        ("import os, helper as h, sys", {"helper"}),
        ("    import helper", {"helper"}),
        ("from helper import *", {"helper"}),
        ("from parts import one, two as three", {"parts", "one", "two"}),
        ("from parts import (  # both\n    one,  # first\n    two,\n)", {"parts", "one", "two"}),
        ("import parts.one", {"parts", "one"}),
        ("from parts.one import f", {"parts", "one"}),
        ("# import helper", set()),
        ("import torch", set()),
        ("from . import helper", {"helper"}),
    ],
)
def test_modules_beside_a_script_are_read_too(tmp_path: Path, line: str, found: set[str]) -> None:
    parts = {"init": "parts", "one": "one", "two": "two"}
    write(tmp_path, train=line, helper="helper", **{f"parts__{name}": text for name, text in parts.items()})
    (tmp_path / "parts" / "init.py").rename(tmp_path / "parts" / "__init__.py")
    assert read(tmp_path, SCRIPT) == {line, *found}


def test_what_they_import_is_read_as_well_and_circles_end(tmp_path: Path) -> None:
    write(tmp_path, train="import a", a="import b", b="import a\nimport train")
    assert read(tmp_path, SCRIPT) == {"import a", "import b", "import a\nimport train"}


def test_of_a_module_relative_names_and_its_packages_count(tmp_path: Path) -> None:
    write(tmp_path, package__train="from .. import x\nfrom .parts.one import f", package__parts__one="one", other="no")
    (tmp_path / "package" / "__init__.py").write_text("package")
    assert read(tmp_path, MODULE) == {"from .. import x\nfrom .parts.one import f", "one", "package"}


@pytest.mark.parametrize("words", [SCRIPT, MODULE, ["python", "-m", "package"], ["torchrun", "train.py"]])
def test_what_is_not_there_has_no_text(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, package__other="no")
    (tmp_path / "package" / "__init__.py").write_text("only a package")
    assert read(tmp_path, words) == set()


def test_a_package_is_its_main_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("main")
    assert "main" in read(tmp_path, ["python", "-m", "package"])


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, train="import helper", helper="before")
    script = Script(SCRIPT, str(tmp_path))
    assert script.texts() == [b"import helper", b"before"]
    write(tmp_path, helper="after it")
    assert script.texts() == [b"import helper", b"after it"]
    (tmp_path / "helper.py").unlink()
    assert script.texts() == [b"import helper"]


def test_a_script_that_comes_later_is_read_then(tmp_path: Path) -> None:
    script = Script(SCRIPT, str(tmp_path))
    assert script.texts() == []
    write(tmp_path, train="here")
    assert script.texts() == [b"here"]


FUNCTION = ["python", "-P", "-m", contract.WORKER_MODULE, "payload"]
TOLD = {"doubt": None, "modules": ["torch"], "sets_variables": False, "serves": None}


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"code": TOLD}, TOLD),
        ({"code": {**TOLD, "doubt": "it does"}}, {**TOLD, "doubt": "it does"}),
        ({"code": {"modules": ["a", 3]}}, {"doubt": None, "modules": ["a"], "sets_variables": True, "serves": None}),
        ({"code": None}, None),
        ({"code": {"modules": 3}}, None),
        (["code"], None),
        (None, None),
    ],
)
def test_of_a_function_its_launcher_has_told(tmp_path: Path, header: Any, told: Any) -> None:
    if header is not None:
        (tmp_path / "payload").write_bytes(json.dumps(header).encode() + b"\n\x80pickled")
    assert Script(FUNCTION, str(tmp_path)).told() == told
    assert Script(SCRIPT, str(tmp_path)).told() is None


def test_folders_that_a_function_has_in_front_are_its_launchers(tmp_path: Path) -> None:
    script = Script(FUNCTION, str(tmp_path))
    assert script.front() == ()
    (tmp_path / "payload").write_bytes(json.dumps({"sys_path": ["/a", "/b"]}).encode() + b"\n")
    assert script.front() == ("/a", "/b") and Script(MODULE, str(tmp_path)).front() == ()
