"""The page of the Python API is the generated one, and nothing public lacks a text."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import trainjob
from support.by_path import module_at
from support.isolation import ROOT

python_page = module_at(ROOT / "docs" / "python_page.py")


def test_the_page_is_the_generated_one() -> None:
    committed = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert committed == python_page.page(), "the docstrings and docs/reference/python.md differ: run `make docs`"


def test_every_public_name_stands_in_one_section() -> None:
    named = [name for names in python_page.SECTIONS.values() for name in names]
    assert sorted(named) == sorted(trainjob.__all__)


@pytest.mark.parametrize("module", python_page.MODULES)
def test_names_of_a_module_of_its_own_have_a_text(module: str) -> None:
    names = python_page.public(module)
    assert names
    text = python_page.page()
    for name in names:
        _, _, entry = text.partition(f"\n### trainjob.{module}.{name}\n\n```python\n")
        shown, _, rest = entry.partition("\n```\n\n")
        assert name in shown and rest.split("\n", 1)[0].strip(), name


def test_a_default_is_shown_as_its_value() -> None:
    assert python_page.fields(trainjob.RunConfig)["prefork"][1] == "'auto'"


@pytest.mark.parametrize("name", trainjob.__all__)
def test_nothing_public_lacks_a_text(name: str) -> None:
    thing = getattr(trainjob, name)
    assert inspect.getdoc(thing)
    if not inspect.isclass(thing):
        return
    assert not [field for field, (_, _, text) in python_page.fields(thing).items() if not text]
    assert not [
        method
        for method, member in python_page.methods(thing).items()
        if not inspect.getdoc(python_page.function_of(member))
    ]


@pytest.mark.parametrize("name", trainjob.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    """It runs: tests/project/test_pages.py, from the page."""
    blocks = re.findall(r"```python\n(.+?)```", inspect.getdoc(getattr(trainjob, name)) or "", re.DOTALL)
    assert any("trainjob" in block or name in block for block in blocks), f"write an example of {name} into its text"


@pytest.mark.parametrize(
    "name", ["TorchTrainer", *(name for name in trainjob.__all__ if inspect.isfunction(getattr(trainjob, name)))]
)
def test_every_argument_is_told_of(name: str) -> None:
    thing = getattr(trainjob, name)
    text = inspect.getdoc(thing) or ""
    assert not [word for word in inspect.signature(thing).parameters if f"`{word}" not in text]


def test_the_examples_are_python() -> None:
    """Names are the user's own; what an example calls of `trainjob` is there and takes these arguments."""
    blocks = re.findall(r"```python\n(.*?)```", python_page.page(), re.DOTALL)
    calls = 0
    for block in blocks:
        if re.match(r"(class |classmethod )?\w+(\(|\n$)", block) and "=" not in block.splitlines()[0].split("(")[0]:
            continue  # a signature
        for node in ast.walk(ast.parse(block)):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case ast.Attribute(value=ast.Name(id="trainjob"), attr=name) | ast.Name(id=name):
                    thing = getattr(trainjob, name, None)
                case _:
                    thing = None
            if thing is not None:
                calls += 1
                words: dict[str, None] = {word.arg: None for word in node.keywords if word.arg}
                inspect.signature(thing).bind(*node.args, **words)
    assert calls >= 5
