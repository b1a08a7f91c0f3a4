"""Plants one mistake after the other in a copy of the tree and runs the one test that is to catch it.

`make mutate` prints a table; a mistake that no test catches is a test that is missing. Nothing of the working tree is
touched. `python -m support.mutation.run WORD` plants those whose name or file has the word in it.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.mutation.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("operator", "worker-image", "tests")
LIMIT_S = 300.0
"""A mutant that hangs for so long is caught, too: the test would never pass."""
HANG_S = 60.0
"""What a test gives what it waits for, where a mistake is planted: most hangs are told by the test itself."""
SOUND_TEST_S = 30.0
"""What each of the tests may take on a busy machine, where nothing is planted."""
COPIES = max(1, min(8, len(os.sched_getaffinity(0))))


def copy_tree(into: Path) -> None:
    """What git would have of the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


def run_tests(tree: Path, tests: list[str], limit_s: float, **more: str) -> tuple[int, str]:
    """pytest's exit code and output; 124: it hung."""
    paths = os.pathsep.join(str(tree / part) for part in SOURCES)
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, "hung"
    return done.returncode, done.stdout + done.stderr


def verdict_on(mutant: Mutant, tree: Path) -> tuple[str, float]:
    """`caught`, `survived`, or what went wrong; and how long it took."""
    begun, path = time.monotonic(), mutant.path(tree)
    source = path.read_text()
    path.write_text(mutant.applied(source))
    try:
        code, output = run_tests(tree, [mutant.test], LIMIT_S, TRAINJOB_TEST_HANG_S=f"{HANG_S:.0f}")
    finally:
        path.write_text(source)
    words = {0: "SURVIVED", 1: "caught", 124: "caught (hung)"}
    word = words.get(code, f"NOT RUN: {output.strip()[-300:]}")
    return word, time.monotonic() - begun


def main() -> None:
    """Plant all (or those with a word), print the table, end with 1 if one survived."""
    wanted = [mutant for mutant in MUTANTS if all(word in f"{mutant.name} {mutant.file}" for word in sys.argv[1:])]
    if not wanted:
        # No test would be named to pytest, which then runs all.
        raise SystemExit(f"no planted mistake has {' and '.join(sys.argv[1:])} in its name or its file's")
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(COPIES):
            tree = Path(scratch) / str(number)
            copy_tree(tree)
            trees.put(tree)
        sound = Path(scratch) / "0"
        tests = sorted({mutant.test for mutant in wanted})
        code, output = run_tests(sound, tests, LIMIT_S + SOUND_TEST_S * len(tests))
        if code != 0:
            raise SystemExit(f"the tests do not pass without a mistake:\n{output[-3000:]}")

        def plant(mutant: Mutant) -> tuple[Mutant, str, float]:
            tree = trees.get()
            try:
                return (mutant, *verdict_on(mutant, tree))
            finally:
                trees.put(tree)

        missed = 0
        with ThreadPoolExecutor(COPIES) as pool:
            for mutant, word, seconds in pool.map(plant, wanted):
                missed += not word.startswith("caught")
                print(f"{word:14} {seconds:5.1f} s  {mutant.name:60} {mutant.file}  {mutant.test}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} mistakes are caught")
    raise SystemExit(missed > 0)


if __name__ == "__main__":
    main()
