"""A measured figure, how it is printed, and where its samples go."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """Samples in one unit, and a peer's in the same one; the value is their median."""

    name: str
    unit: str
    samples: Sequence[float]
    peer: Sequence[float] = field(default=())
    peer_name: str = ""
    quantile: float = 0.5

    @property
    def value(self) -> float:
        """The median, or the quantile that the figure is about."""
        return quantile(self.samples, self.quantile)

    def line(self) -> str:
        """`name value unit`, or `name ours peer ratio` where there is a peer."""
        if not self.peer:
            return f"{self.name} {self.value:.4g} {self.unit}"
        theirs = quantile(self.peer, self.quantile)
        return f"{self.name} {self.value:.4g} {theirs:.4g} {self.value / theirs:.3g}"

    def spread(self) -> str:
        """For people: each side's median, least, most and number of samples."""
        sides = [("ours", self.samples), (self.peer_name or "peer", self.peer)]
        return ", ".join(
            f"{who} {median(each):.4g} {self.unit} ({min(each):.4g}-{max(each):.4g}, n={len(each)})"
            for who, each in sides
            if each
        )


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample below which that share of all lies."""
    if share == 0.5:
        return median(samples)
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Results:
    """Prints figures as they come and writes all of them at the end."""

    def __init__(self) -> None:
        self._figures: dict[str, list[Figure]] = {}

    def add(self, measurement: str, figures: list[Figure]) -> None:
        """Print them, keep them."""
        self._figures[measurement] = figures
        for figure in figures:
            print(figure.line(), flush=True)
            if figure.peer:
                print(f"  {figure.name}: {figure.spread()}", file=sys.stderr, flush=True)

    def keep(self, measurement: str, figures: list[Figure]) -> None:
        """Those that were printed as they came."""
        self._figures[measurement] = figures

    def write(self, folder: Path) -> Path:
        """One JSON file named by the time, in a folder that git ignores."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        content = {
            "machine": _machine(),
            "figures": {name: [asdict(figure) for figure in figures] for name, figures in self._figures.items()},
        }
        path.write_text(json.dumps(content, indent=1))
        return path


def _machine() -> dict[str, object]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "processor": platform.machine(),
        "system": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "trainjob": _version("trainjob"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
