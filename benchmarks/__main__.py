"""Runs the measurements and prints one line per figure: `name value unit`, or with a peer `name ours peer ratio`.

    python -m benchmarks [--rounds N] [--only NAME ...] [--results FOLDER]

Each measurement alternates between TrainJob and its peer, so that both see the same machine. Raw samples are kept as
JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import agents, calls, command_line, restart, start
from benchmarks.figures import RESULTS, Figure, Results

MEASUREMENTS: dict[str, Callable[[int], list[Figure]]] = {
    "help": command_line.measure,
    "start": start.measure,
    "calls": calls.measure,
    "agents": agents.measure,
    "restart": restart.measure,
}


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each side of each measurement is run (default: 3)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=sorted(MEASUREMENTS),
        default=list(MEASUREMENTS),
        metavar="NAME",
        help=f"some of: {', '.join(MEASUREMENTS)}",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="where the raw samples go (default: benchmarks/results)",
    )
    args = parser.parse_args()
    results = Results()
    for name in args.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        results.add(name, MEASUREMENTS[name](args.rounds))
    print(f"raw samples: {results.write(args.results)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
