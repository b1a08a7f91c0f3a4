"""Every code block of every page: run where it can run here, held to the code where it cannot.

- `python`: a block that begins with `# name.py` is that file, for the commands of its page. Any other is a part of a
  script and runs inside a rank of its own (tests/support/page_stage.py).
- `sh`: typed line by line (`# ends with N` is the exit code that the page promises). Each line of the `text` block
  behind it must be part of what was said, in that order, `...` standing for anything. What is typed at a debugger
  stands behind `(Pdb) `.
- `yaml`: goes through what `tj validate` checks. `json` is read. A `diff` leaves Python or a command that parses.
- A block that cannot run here says why in a comment above it, and is counted below.

Links, and the commands of all blocks, also of those that do not run: tests/cli/test_docs.py.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support import pages
from support.isolation import ROOT
from support.pages import Block
from support.patience import HANG_S
from trainjob_api.validation import parse_trainjob

NOT_RUN = collections.Counter(
    {
        "needs a cluster": 17,
        "needs a GPU": 1,
        "needs a bucket": 1,
        "`.ci/run` does it on a clean clone": 3,
        "takes minutes": 3,
    }
)
"""How many `sh`, `python` and `yaml` blocks do not run here, and why: who adds one says so here."""


def environment(folder: Path) -> dict[str, str]:
    """A new user's: a home of his own, this Python's programs first."""
    programs = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINJOB_", "XDG_", "PYTEST_"))}
    (folder / "home").mkdir()
    own = {"HOME": str(folder / "home"), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "CI": "1"}
    quick = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**kept, **own, **quick}


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
            timeout=HANG_S,
            check=False,
        )
        said += done.stdout
        assert done.returncode == int(comment or 0), f"{line}\n{said}"
        in_background = re.search(r"^tj run .*--name (\S+) .*--detach", command)
        if in_background:
            _wait_until_it_says_something(in_background[1], folder, variables)
    return said


def _wait_until_it_says_something(job: str, folder: Path, variables: dict[str, str]) -> None:
    """Nobody types the next command of a page before the job in the background has begun. One process that follows its
    lines, as each look of a new one takes the processor time that the job needs to begin.
    """
    command = ["bash", "-c", f"exec tj logs {job} --rank 0 -f"]
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as follows:
        limit = threading.Timer(HANG_S, follows.kill)
        limit.start()
        try:
            assert follows.stdout is not None
            assert any(line.startswith("r00 | ") for line in follows.stdout), f"{job} said nothing for {HANG_S} s"
        finally:
            limit.cancel()
            follows.kill()


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


def typed_here(block: Block) -> bool:
    return block.language == "sh" and not block.note


TYPED = [page for page in pages.pages() if any(map(typed_here, pages.blocks(page)))]


def test_every_block_says_what_it_is() -> None:
    for block in pages.all_blocks():
        assert block.language in pages.LANGUAGES, f"{block.place}: write one of {sorted(pages.LANGUAGES)} behind ```"
        assert block.not_run is None or block.not_run in pages.REASONS, f"{block.place}: {block.not_run}"
        if block.run_by is not None:
            page = str(block.page.relative_to(ROOT))
            assert page in (ROOT / block.run_by).read_text(encoding="utf-8"), f"{block.run_by} names no {page}"


def test_blocks_that_cannot_run_here_are_counted() -> None:
    assert collections.Counter(block.not_run for block in pages.all_blocks() if block.not_run) == NOT_RUN
    assert NOT_RUN.keys() == pages.REASONS, "a reason that no page gives is none"


@pytest.mark.slow
@pytest.mark.timeout(3 * HANG_S)  # each command has HANG_S
@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_a_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    variables, said, commands = environment(tmp_path), "", 0
    for folder in ("crds", "examples", "helm"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    blocks = pages.blocks(page)
    for at, block in enumerate(blocks):
        follows = blocks[at + 1] if at + 1 < len(blocks) else None
        expected = follows.body.splitlines() if follows and follows.language == "text" else []
        if block.file:
            (tmp_path / block.file).write_text(block.body)
        elif typed_here(block):
            typed = "".join(f"{line.removeprefix('(Pdb) ')}\n" for line in expected if line.startswith("(Pdb) "))
            lines = block.body.replace("\\\n", " ").splitlines()
            said = type_all(lines, typed, tmp_path, variables)
            lack = missing([line for line in expected if not line.startswith("(Pdb) ")], said)
            assert lack is None, f"{block.place}\n{block.body}\nlacks: {lack}\n{said}"
            commands += len(lines)
    assert commands > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_parts_of_scripts_run(tmp_path: Path) -> None:
    parts = [
        (f"{block.page} {block.section}", block.place, block.body)
        for block in pages.all_blocks()
        if block.language == "python" and not block.file and not block.note and not block.is_signature
    ]
    done = subprocess.run(
        [sys.executable, "-m", "support.page_stage", str(tmp_path)],
        cwd=tmp_path,
        env={**environment(tmp_path), "PYTHONPATH": str(ROOT / "tests")},
        input=json.dumps(parts),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    results = dict(json.loads(done.stdout.splitlines()[-1]))
    assert results.keys() == {place for _, place, _ in parts} and len(results) > 20
    broken = [f"{place}\n{error}" for place, error in results.items() if error]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    "block", [block for block in pages.all_blocks() if block.language == "yaml"], ids=lambda block: block.place
)
def test_yaml_is_valid(block: Block) -> None:
    for document in yaml.safe_load_all(block.body):
        if document.get("kind") == "TrainJob":
            parse_trainjob(document)
        else:
            assert block.note.startswith("below spec"), f"{block.place}: say below what of a TrainJob it stands"
            parse_trainjob(below(block.note.removeprefix("below "), document))


def below(path: str, part: dict[str, object]) -> dict[str, object]:
    """A small valid TrainJob that has `part` at this path."""
    job: dict[str, object] = {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "page"},
        "spec": {
            "workers": 2,
            "template": {
                "spec": {"containers": [{"name": "trainer", "image": "image", "command": ["python", "train.py"]}]}
            },
        },
    }
    at = job
    for key in path.split("."):
        step = at[key]
        at = step[0] if isinstance(step, list) else step  # type: ignore[assignment]
    for key, value in part.items():
        inner = at.get(key)
        at[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    return job


def test_json_is_read_and_diffs_leave_code_that_parses() -> None:
    seen = 0
    for block in pages.all_blocks():
        if block.language == "json":
            json.loads(block.body)
        elif block.language == "diff":
            lines = textwrap.dedent("\n".join(line[1:] for line in block.body.splitlines() if line.startswith("+")))
            if not lines.startswith("tj "):  # commands: tests/cli/test_docs.py
                try:
                    compile(lines, block.place, "exec")
                except IndentationError:  # the diff ends with the head of a loop
                    compile(f"{lines}\n    pass", block.place, "exec")
        else:
            continue
        seen += 1
    assert seen > 3
