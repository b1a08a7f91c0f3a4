"""Runs the measurements and prints one line per figure: `name value unit`, or with a peer `name ours peer ratio`.

    PYTHONPATH=tests python -m benchmarks [--rounds N] [--only NAME ...] [--results FOLDER]

Each measurement alternates between TrainJob and its peer, so that both see the same machine. Raw samples are kept as
JSON under benchmarks/results/.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import agents, calls, command_line, hangs, resize, restart, start
from benchmarks.figures import Figure
from benchmarks.measuring import arguments, measure

MEASUREMENTS: dict[str, Callable[[int], list[Figure]]] = {
    "help": command_line.measure,
    "start": start.measure,
    "calls": calls.measure,
    "agents": agents.measure,
    "restart": restart.measure,
    "restart_raised": restart.measure_raised,
    "restart_libraries": restart.measure_libraries,
    "resize": resize.measure,
    "hangs": hangs.measure,
}


def main() -> int:
    """Measure what was asked for."""
    args = arguments("python -m benchmarks", __doc__, MEASUREMENTS).parse_args()
    return measure(args, lambda name: MEASUREMENTS[name](args.rounds))


if __name__ == "__main__":
    sys.exit(main())
