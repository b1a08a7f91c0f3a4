"""Tables on a terminal and in a pipe: aligned columns, a colour for the state where colours are wanted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

STYLES = {
    "Complete": "green",
    "Failed": "red",
    "Restarting": "yellow",
    "Suspended": "yellow",
    "Cancelled": "yellow",
    "Stopping": "yellow",
    "Running": "cyan",
    "ok": "green",
    "warn": "yellow",
    "FAIL": "red",
}
GAP = "   "


def lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows below their header, in columns as wide as their widest cell; no spaces at the ends."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (header, *rows)
    ]


def width() -> int | None:
    """Columns of the terminal that standard output is; None: it is none, and there is no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print them; words that name a state are coloured on a terminal (rich heeds NO_COLOR and TERM)."""
    text = lines(header, rows)
    if not sys.stdout.isatty():
        print(*text, sep="\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for number, line in enumerate(text):
        shown = Text(line, style="bold" if number == 0 else "")
        if number:
            for word, style in STYLES.items():
                shown.highlight_words([word], style)
        console.print(shown, soft_wrap=True)
