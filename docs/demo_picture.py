"""Draws docs/demo.svg, the README's picture, from what `make demo` prints; run by `make picture`.

Nothing in it is made up: the demo runs, and its lines are drawn as they came. Left out are only the lines of a rank's
traceback, whose neighbour was killed (they are some twenty, with paths of this machine); a line says how many.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "demo.svg"
WIDTH = 118
STYLES = (
    (re.compile(r"kill -9|killed by|failed:"), "bold red"),
    (re.compile(r"attempt 2 |resumes from|from epoch [1-9]"), "bold green"),
    (re.compile(r"^demo: "), "bold white"),
    (re.compile(r"^(tj  |agent) \|"), "cyan"),
)


def shown(lines: Iterable[str]) -> Iterator[str]:
    """The lines as they are drawn: without this machine's paths, and without a survivor's traceback."""
    left_out = 0
    for line in (re.sub(r" --storage \S+|; checkpoints in \S+|: /tmp/\S+", "", line.rstrip()) for line in lines):
        if re.match(r"r\d\d \| \[rank\d\]:", line):
            left_out += 1
            continue
        if left_out:
            yield f"r00 | ({left_out} lines: its neighbour is gone, says torch)"
            left_out = 0
        yield line.replace(f"{ROOT}/", "")


def drawn(lines: Iterable[str]) -> str:
    """The SVG."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text("$ make demo", style="bold"))
        for line in lines:
            style = next((style for pattern, style in STYLES if pattern.search(line)), "")
            console.print(Text(line, style=style, overflow="ellipsis", no_wrap=True))
        svg = console.export_svg(title="TrainJob", unique_id="demo")
    # The reader's own monospaced letters: a picture that fetches nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> int:
    """Run the demo, draw it; the demo's exit code."""
    words = [sys.executable, str(ROOT / "examples" / "digits" / "demo.py")]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        PICTURE.write_text(drawn(shown(done.stdout.splitlines())), encoding="utf-8")
        print(f"drawn: {PICTURE.relative_to(ROOT)}")
    else:
        print(done.stdout)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
