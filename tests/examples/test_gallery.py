"""The gallery of other libraries' training loops: each example is short, has a manifest, and its command is the one that
docs/frameworks.md shows and tests run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from support.isolation import ROOT
from trainjob_api.validation import parse_trainjob

MOST_LINES = 60
LONGER = {"gpt"}
"""A transformer and its plan of tensor parallelism are written out there."""
GALLERY = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| \[[^]]+\]\((\w+)/train\.py\) \| `(tj run [^`]+)` \|", GALLERY, re.MULTILINE))


def test_every_command_of_the_page_on_frameworks_stands_in_the_gallery() -> None:
    commands = set(re.findall(r"^tj run [^\n]*examples/[^\n]+$", PAGE, re.MULTILINE))
    assert commands == set(ROWS.values()) and len(ROWS) == 15


@pytest.mark.parametrize("name", ROWS)
def test_an_example_is_short_and_its_command_names_what_is_there(name: str) -> None:
    script = ROOT / "examples" / name / "train.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert name in LONGER or len(lines) <= MOST_LINES, len(lines)
    words = shlex.split(ROWS[name])
    named = [word for word in words if word.startswith("examples/")]
    assert named and all((ROOT / word).is_file() for word in named)
    assert all(Path(word).parent.name == name for word in named)


@pytest.mark.parametrize("name", ROWS)
def test_an_examples_manifest_runs_its_script(name: str) -> None:
    text = (ROOT / "examples" / name / "trainjob.yaml").read_text(encoding="utf-8")
    job = parse_trainjob(yaml.safe_load(text))
    (container,) = job.spec.template["spec"]["containers"]
    assert f"examples/{name}/train.py" in container["command"]
    assert f"kubectl apply -f examples/{name}/trainjob.yaml" in text
