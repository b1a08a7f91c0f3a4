"""The documentation says what the code says: links, commands, causes, imports, manifests."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import trainjob
from support.jobs import causes
from trainjob.cli import parser as grammar
from trainjob_api.validation import parse_trainjob

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "docs" / "reference" / "cli.md",
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "examples" / "digits" / "README.md",
    ]
)
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)#]+)?(?:#(?P<anchor>[^)]+))?\)")


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for found in LINK.finditer(FENCE.sub("", text(page))):
        target = (page.parent / found["target"]).resolve() if found["target"] else page
        assert target.exists(), f"{page.name}: {found['target']}"
        assert not found["anchor"] or found["anchor"] in anchors(target), f"{page.name}: #{found['anchor']}"


def commands() -> list[tuple[str, str]]:
    return [
        (page.name, line.split("#")[0].strip())
        for page in PAGES
        for fence in FENCE.finditer(text(page))
        for line in fence["body"].splitlines()
        if line.lstrip("+").startswith("tj ")
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_parse(page: str, line: str) -> None:
    if "[options]" in line:
        line = line.replace(" N ", " 2 ").replace("NAME", "digits")
    words = shlex.split(line.lstrip("+").replace("[options]", "").replace("[-- ARGS ...]", ""))[1:]
    if words == ["--help"]:
        return
    args, unknown = grammar.build().parse_known_args(words[: words.index("--")] if "--" in words else words)
    assert not unknown
    script, file = getattr(args, "script", None), getattr(args, "file", None)
    assert args.command not in ("run", "submit") or bool(script) != bool(file)
    for name in filter(None, [file, script]):
        assert "/" not in name or (ROOT / name).exists()


def test_causes_are_explained_all_of_them() -> None:
    table = text(ROOT / "docs" / "failures.md").partition("## Causes")[2]
    explained = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert explained == causes()


def test_every_import_that_is_promised_is_there() -> None:
    rows = re.findall(
        r"^\| `(ray\.\S+)` \| `trainjob\.(\w+)` \|", text(ROOT / "docs" / "migrating-from-ray-train.md"), re.MULTILINE
    )
    assert len(rows) > 15
    for theirs, ours in rows:
        module, _, name = theirs.rpartition(".")
        assert getattr(import_module(f"trainjob.compat.{module}"), name) is getattr(trainjob, ours)
        assert ours in trainjob.__all__


def manifests() -> list[tuple[str, str]]:
    found = [
        (page.name, fence["body"])
        for page in PAGES
        for fence in FENCE.finditer(text(page))
        if fence["language"] == "yaml" and "kind: TrainJob" in fence["body"]
    ]
    return [*found, ("trainjob.yaml", text(ROOT / "examples" / "digits" / "trainjob.yaml"))]


@pytest.mark.parametrize(("page", "manifest"), manifests())
def test_manifests_are_valid(page: str, manifest: str) -> None:
    assert parse_trainjob(yaml.safe_load(manifest)).spec.workers == 2


def python() -> list[tuple[str, str]]:
    return [
        (page.name, fence["body"])
        for page in PAGES
        for fence in FENCE.finditer(text(page))
        if fence["language"] == "python"
    ]


@pytest.mark.parametrize(("page", "code"), python())
def test_python_compiles_and_uses_names_that_exist(page: str, code: str) -> None:
    compile(code, page, "exec")
    for name in re.findall(r"\btrainjob\.(\w+)\(", code):
        assert name in trainjob.__all__
