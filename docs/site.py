"""Builds the pages as a web site into build/site, by mkdocs and the Material theme; run by `make site`.

The pages link to each other as files of the repository, so the site has the repository's folders: pages and what they
link to are copied into build/pages first. A warning of mkdocs (a link that leads nowhere, a page in no menu) is an
error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")

MENU = {
    "Start": ["README.md", "docs/quickstart.md", "docs/concepts.md"],
    "On your machine": [
        "docs/local-jobs.md",
        "docs/debugging.md",
        "docs/gpus.md",
        "docs/data-loaders.md",
        "docs/using-the-model.md",
    ],
    "On Kubernetes": ["docs/install.md", "docs/kubernetes.md", "docs/kubernetes-trainer.md"],
    "When something breaks": ["docs/troubleshooting.md", "docs/failures.md", "docs/checkpoints.md"],
    "Examples": ["examples"],
    "Reference": ["docs/reference"],
    "Elsewhere": ["docs/migrating-from-ray-train.md", "docs/performance.md", "docs/how-we-test.md"],
    "The project": ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"],
}
"""Heading -> pages, or folders with all pages below them; what is in none goes under `Elsewhere`."""


def pages() -> list[Path]:
    """Every page, relative to the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def menu() -> list[dict[str, list[str]]]:
    """mkdocs's `nav`, with every page in it once."""
    left = [str(path) for path in pages()]
    made: dict[str, list[str]] = {}
    for heading, wanted in MENU.items():
        made[heading] = [page for name in wanted for page in left if page == name or page.startswith(f"{name}/")]
    placed = {page for group in made.values() for page in group}
    made["Elsewhere"] += [page for page in left if page not in placed]
    return [{heading: group} for heading, group in made.items()]


def linked() -> Iterator[Path]:
    """The files that pages link to and that are no pages."""
    for page in pages():
        for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            path = (ROOT / page).parent / target
            if "://" not in target and path.is_file() and path.suffix != ".md":
                yield path.resolve().relative_to(ROOT)


def main() -> int:
    """Build it; mkdocs's exit code."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in {*pages(), *linked()}:
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, PAGES / path)
    settings = {
        "site_name": "TrainJob",
        "docs_dir": str(PAGES),
        "site_dir": str(SITE),
        "theme": {"name": "material", "font": False, "features": ["navigation.indexes", "content.code.copy"]},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "pymdownx.highlight"],
        "validation": {"links": {"anchors": "warn", "unrecognized_links": "warn"}, "nav": {"omitted_files": "warn"}},
        "nav": menu(),
    }
    config = PAGES.parent / "mkdocs.yml"
    config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=ROOT, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
