"""Numbers and times as people read them: pure functions for the lines that the CLI prints."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence

SHOWN_METRICS = 6
"""Metrics on one line; a script that reports fifty would otherwise push everything else away."""


def from_before(checkpoint: str) -> str:
    """Of a run that ended without a checkpoint of its own."""
    return f"nothing new; checkpoint {checkpoint} is there from before"


def duration(seconds: float) -> str:
    """`0.4s`, `12s`, `3m05s`, `1h12m`, `2d03h`; never negative."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def age(since: float, now: float) -> str:
    """How long ago, in every table: `8s`, `42s`, `1m45s`, `3h12m`, `2d03h`."""
    seconds = max(0, int(now - since))
    return f"{seconds}s" if seconds < 10 else duration(seconds)


def cut(text: str, limit: int) -> str:
    """Its first line, of at most so many characters."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= limit else first[: max(0, limit - 3)].rstrip() + "..."


def per_step(seconds: float) -> str:
    """Three significant digits, in the unit that fits: `850 us/step`, `12.4 ms/step`, `1.31 s/step`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us/step"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms/step"
    return f"{seconds:.3g} s/step"


def size(count: int) -> str:
    """Bytes in binary units: `512 B`, `1.4 MiB`."""
    value, units = float(count), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {units[-1]}"


def metrics(values: Mapping[str, float]) -> str:
    """`accuracy=0.983 loss=0.0312`, at most SHOWN_METRICS of them in the order they came in."""
    shown = [f"{name}={number(value)}" for name, value in list(values.items())[:SHOWN_METRICS]]
    more = len(values) - len(shown)
    return " ".join(shown) + (f" and {more} more" if more > 0 else "")


def non_finite(metric: str, value: str, step: int | None, position: int, times: int) -> str:
    """`loss became NaN at step 3 (12 values so far)`."""
    where = f"report {position + 1}" if step is None else f"step {step}"
    return f"{metric} became {value} at {where} ({count(times, 'value')} so far)"


def number(value: float) -> str:
    """Four significant digits; whole numbers stay whole."""
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def count(many: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `2 processes`."""
    if many == 1:
        return f"1 {noun}"
    return f"{many} {noun}{'es' if noun.endswith('s') else 's'}"


def signal_name(value: int) -> str:
    """`SIGKILL` for 9; the number itself where this system has no name for it."""
    try:
        return signal.Signals(value).name
    except ValueError:
        return f"signal {value}"


def nearest(text: str, known: Sequence[str], limit: int = 3) -> list[str]:
    """The names that `text` was most likely meant to be, best first; none when nothing is like it."""
    from difflib import get_close_matches  # here: other commands need not wait for it

    return get_close_matches(text, known, n=limit, cutoff=0.5)


def sizes(found: Sequence[int], noun: str) -> str:
    """`3 workers`, `1 to 3 workers (elastic)`, `2, 4 or 8 workers (elastic)`: of sizes in rising order."""
    if len(found) == 1:
        return count(found[0], noun)
    least, most = found[0], found[-1]
    whole = most - least + 1 == len(found)
    listed = f"{least} to {most}" if whole else f"{', '.join(str(size) for size in found[:-1])} or {most}"
    return f"{listed} {noun}s (elastic)"


def workers(found: Sequence[int], processes: int) -> str:
    """`1 worker with 1 process`, `2 workers with 4 processes each`."""
    each = "" if list(found) == [1] else " each"
    return f"{sizes(found, 'worker')} with {count(processes, 'process')}{each}"


def boundary(wait_s: int) -> str:
    """Where a planned change ends an attempt that trains, when it may wait for so many seconds."""
    return f"at the next report() with a checkpoint, at the latest after {wait_s} s (spec.boundaryTimeoutSeconds)"
