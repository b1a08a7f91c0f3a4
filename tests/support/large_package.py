"""An installed package that is large enough to be learned, of which a part is imported when it is asked for."""

from __future__ import annotations

from pathlib import Path

PARTS = 40


def install(folder: Path) -> Path:
    """Its site-packages below that folder: `large`, with parts that it brings, and `large.lazy`, which it does not."""
    site = folder / "env" / "site-packages"
    (site / "large").mkdir(parents=True)
    names = [f"part{number}" for number in range(PARTS)]
    (site / "large" / "__init__.py").write_text("".join(f"from large import {name}\n" for name in names))
    for name in (*names, "lazy"):
        (site / "large" / f"{name}.py").write_text("")
    return site
