"""The command line that the benchmarks share, and the loop over what was asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from benchmarks.figures import RESULTS, Figure, Results


def arguments(prog: str, description: str | None, names: Collection[str]) -> argparse.ArgumentParser:
    """`--rounds`, `--only`, `--results`; the caller may add its own."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each side of each measurement is run (default: 3)"
    )
    only = f"some of: {', '.join(names)}"
    parser.add_argument("--only", nargs="+", choices=sorted(names), default=list(names), metavar="NAME", help=only)
    where = "where the raw samples go (default: benchmarks/results)"
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help=where)
    return parser


def measure(args: argparse.Namespace, one: Callable[[str], list[Figure]]) -> int:
    """Each in turn: its figures are printed as they come, its samples written at the end."""
    results = Results()
    for name in args.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        results.add(name, one(name))
    print(f"raw samples: {results.write(args.results)}", file=sys.stderr)
    return 0
