"""A red property test is red again when it runs alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.steady_examples import ROOT, constants


def drawn() -> list[Any]:
    examples: list[Any] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.one_of(st.integers(), st.text(max_size=12)))
    def draw(value: int | str) -> None:
        examples.append(value)

    draw()
    return examples


def test_what_is_loaded_beside_a_test_changes_none_of_its_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    source = tmp_path / "loaded_beside.py"
    source.write_text("\n".join(f"N{n} = {987654321 + n}" for n in range(200)))
    monkeypatch.setattr("hypothesis.internal.conjecture.providers.is_local_module_file", lambda path: True)
    spec = importlib.util.spec_from_file_location("loaded_beside", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "loaded_beside", module)
    assert drawn() == before


def test_the_pool_has_the_words_of_the_contract() -> None:
    assert "completed" in constants().strings or "trainer" in constants().strings
    assert (ROOT / "operator").is_dir()
