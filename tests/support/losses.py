"""The losses that loops note bit for bit: `<step> <hex>` a line, in a file a rank."""

from __future__ import annotations

from pathlib import Path


def losses(notes: Path, rank: int) -> dict[int, str]:
    """The last word on each step; a step that was repeated after a resume must not contradict itself."""
    found: dict[int, str] = {}
    for line in (notes / f"losses-{rank}").read_text().splitlines():
        step, value = line.split()
        assert found.setdefault(int(step), value) == value, (
            f"step {step} of rank {rank} came out differently when it was repeated"
        )
    return found
