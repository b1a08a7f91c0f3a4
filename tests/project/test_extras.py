"""The package's extras of frameworks: what the tests run lies in their ranges, and so does what a missing library's
sentence says to install.
"""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.isolation import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OURS = {"operator", "worker", "torch", "cli", "dev"}
FRAMEWORKS = sorted(set(EXTRAS) - OURS)
WANTED = {
    canonicalize_name(wanted.name): wanted
    for extra in FRAMEWORKS
    for wanted in map(Requirement, EXTRAS[extra])
    if wanted.name != "trainjob"
}
SAME = {"tensorflow-cpu": "tensorflow", "xgboost-cpu": "xgboost"}
"""Packages of the same library for machines without GPUs."""


def pinned() -> dict[str, str]:
    """What `make test-frameworks` installs."""
    lines = [
        line
        for file in sorted((ROOT / "tests" / "frameworks").glob("requirements*.txt"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    found = dict(line.split("==") for line in lines if "==" in line)
    return {SAME.get(canonicalize_name(name), canonicalize_name(name)): version for name, version in found.items()}


def test_each_range_ends_before_the_next_version_that_may_break_it() -> None:
    for wanted in WANTED.values():
        assert {one.operator for one in wanted.specifier} == {">=", "<"}, wanted


@pytest.mark.parametrize("name", sorted(set(WANTED) & set(pinned())))
def test_what_is_tested_lies_in_the_range(name: str) -> None:
    assert WANTED[name].specifier.contains(pinned()[name])


def test_most_are_run_in_a_version_of_their_own() -> None:
    of_the_environment = {"transformers", "accelerate", "scikit-learn"}
    assert set(WANTED) - set(pinned()) == of_the_environment


def test_a_missing_librarys_sentence_names_where_the_range_begins() -> None:
    folder = ROOT / "worker-image" / "trainjob" / "integrations"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    told = dict(one for text in texts for one in re.findall(r"[\"']([a-z_-]+)>=([0-9.]+)[\"']", text))
    begins = {
        wanted.name: one.version for wanted in WANTED.values() for one in wanted.specifier if one.operator == ">="
    }
    assert len(told) == 9 and {name: begins[name] for name in told} == told


def test_the_oldest_versions_that_are_promised_are_those_that_are_tested() -> None:
    text = (ROOT / "tests" / "frameworks" / "requirements-oldest.txt").read_text(encoding="utf-8")
    tested = dict(re.findall(r"(?m)^([\w-]+)==([\d.]+)$", text))
    promised = [*PROJECT["dependencies"], *(one for extra in sorted(OURS - {"dev"}) for one in EXTRAS[extra])]
    for wanted in map(Requirement, promised):
        (begins,) = [one.version for one in wanted.specifier if one.operator == ">="]
        assert f"{tested[canonicalize_name(wanted.name)]}.".startswith(f"{begins}."), wanted
