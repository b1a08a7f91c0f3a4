"""Pages that promise to run as printed: their files are written, their commands typed, their output looked for.

In a page, a python block that begins with `# name.py` is that file. A sh block is typed line by line (`# ends with N` is
the exit code that the page promises), and each line of the text block behind it must be part of what was said, in that
order, `...` standing for anything. What is typed at a debugger stands behind `(Pdb) `.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ("debugging.md", "local-jobs.md")
LIMIT_S = 120


def environment(folder: Path) -> dict[str, str]:
    """A new user's: a home of his own, this Python's programs first."""
    programs = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINJOB_", "XDG_", "PYTEST_"))}
    (folder / "home").mkdir()
    own = {"HOME": str(folder / "home"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CI": "1"}
    return {**kept, **own, "OMP_NUM_THREADS": "1"}


def type_all(lines: list[str], typed: str, folder: Path, variables: dict[str, str]) -> str:
    """What was said, standard error and output in one."""
    said = ""
    for line in lines:
        command, _, comment = line.partition(" # ends with ")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=variables,
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        said += done.stdout
        assert done.returncode == int(comment or 0), f"{line}\n{said}"
    return said


def missing(wanted: list[str], said: str) -> str | None:
    """The first line that does not follow; each begins after the one before."""
    at = 0
    for line in wanted:
        pattern = ".*?".join(re.escape(part) for part in line.strip().split("..."))
        found = re.compile(pattern).search(said, at)
        if found is None:
            return line
        at = found.end()
    return None


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    variables, said, commands = environment(tmp_path), "", 0
    blocks = FENCE.findall((ROOT / "docs" / page).read_text())
    for at, (language, body) in enumerate(blocks):
        follows = blocks[at + 1] if at + 1 < len(blocks) else ("", "")
        expected = follows[1].splitlines() if follows[0] == "text" else []
        if language == "python" and body.startswith("# "):
            (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
        elif language == "sh":
            typed = "".join(f"{line.removeprefix('(Pdb) ')}\n" for line in expected if line.startswith("(Pdb) "))
            said = type_all(body.splitlines(), typed, tmp_path, variables)
            lack = missing([line for line in expected if not line.startswith("(Pdb) ")], said)
            assert lack is None, f"{body}\nlacks: {lack}\n{said}"
            commands += len(body.splitlines())
    assert commands > 5, "the page has blocks that are typed"
