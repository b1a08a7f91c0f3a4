"""`Checkpoint.from_dict` and `to_dict` beside torch.save and torch.load, in turn, of one state: processor seconds.

`dicts.py NOTES ROUNDS BYTES`: a line of JSON for each round.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainjob import Checkpoint

PARTS = 8


def spent(what: Callable[[], Any]) -> tuple[float, Any]:
    """Of this process, with the kernel's part of it."""
    begun = time.process_time()
    made = what()
    return time.process_time() - begun, made


def main() -> None:
    """Everything in TMPDIR."""
    notes, rounds, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    state = {str(number): torch.rand(size // PARTS // 4) for number in range(PARTS)}
    with tempfile.TemporaryDirectory() as folder, open(notes, "a", encoding="utf-8") as file:
        path = os.path.join(folder, "state.pt")
        for _ in range(rounds):
            row = {}
            row["from_dict"], checkpoint = spent(lambda: Checkpoint.from_dict(state))
            row["save"], _ = spent(lambda: torch.save(state, path))
            row["to_dict"], _ = spent(checkpoint.to_dict)
            row["load"], _ = spent(lambda: torch.load(path))
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
