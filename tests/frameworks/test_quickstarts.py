"""What a framework's first script becomes: `before.py` runs by itself, `after.py` on two ranks with checkpoints, and few
lines differ. Each is what the framework's own first page shows, with data made on the spot.
"""

from __future__ import annotations

import difflib
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.ports import free_port
from support.spoken import said
from trainjob import Result

FOLDER = Path(__file__).with_name("quickstarts")
STRUCK = Path(__file__).with_name("struck.py")
MOST = 4
LIMIT_S = 500
LINES = {
    "lightning": 3,
    "transformers": 2,
    "torch": 4,
    "deepspeed": 3,
    "jax": 5,
    "orbax": 4,
    "tensorflow": 4,
    "keras": 3,
    "xgboost": 4,
    "lightgbm": 4,
}
"""As docs/frameworks.md says them."""
MORE = {"jax"}
"""More than `MOST`, which the page says."""
LIBRARIES = {"transformers": "accelerate", "orbax": "orbax.checkpoint", "keras": "tf_keras"}
FIRST = {"deepspeed": "import trainjob.deepspeed"}
"""What keeps a first script from compiling for minutes here."""
AGAIN = {"torch", "deepspeed", "jax", "orbax", "tensorflow", "keras"}
"""Those whose resume no other test has: rank 1 is killed behind the first report."""


def changed(name: str) -> int:
    """Lines of `after.py` that are new or another; how far they are indented, and empty ones, do not count."""
    before, after = (
        [line.strip() for line in (FOLDER / name / file).read_text(encoding="utf-8").splitlines() if line.strip()]
        for file in ("before.py", "after.py")
    )
    kept = sum(block.size for block in difflib.SequenceMatcher(None, before, after).get_matching_blocks())
    return len(after) - kept


def is_there(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def alone() -> dict[str, str]:
    """As the framework's own launcher starts one process."""
    port = str(free_port())
    torch = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    slurm = {"JOB_ID": "1", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "STEP_NODELIST": "localhost"}
    jax = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", **{f"SLURM_{name}": value for name, value in slurm.items()}}
    return {**torch, **jax, "ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize("name", LINES)
def test_few_lines_change(name: str) -> None:
    assert changed(name) == LINES[name]
    assert (LINES[name] > MOST) == (name in MORE)


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT_S + 30)
@pytest.mark.parametrize("name", LINES)
def test_both_run(tmp_path: Path, name: str) -> None:
    if not is_there(LIBRARIES.get(name, name)):
        pytest.skip(f"{name} is not installed: make test-frameworks")
    before, after = FOLDER / name / "before.py", FOLDER / name / "after.py"
    alone_in = tmp_path / "alone"
    alone_in.mkdir()
    words = [str(before)] if name not in FIRST else ["-c", f"{FIRST[name]}, runpy; runpy.run_path({str(before)!r})"]
    said(words, alone_in, limit_s=LIMIT_S, **(alone() if name in AGAIN - {"tensorflow", "keras"} else {}))
    job = ["-m", "trainjob.cli.main", "run", "--workers", "2", "--name", "job", "--storage", str(tmp_path)]
    if name not in AGAIN:
        said([*job, "--prefork", "Never", str(after)], tmp_path, limit_s=LIMIT_S)
    else:
        shown = said([*job, str(STRUCK), "--", "-1", str(after)], tmp_path, limit_s=LIMIT_S)
        assert "attempt 2 resumes from checkpoint 1-1-1" in shown, shown
        steps = [row["step"] for row in Result.from_path(str(tmp_path / "default" / "job")).rows]
        assert steps == sorted(set(steps)) and len(steps) >= 3, "it continued, and did not begin again"
    assert Result.from_path(str(tmp_path / "default" / "job")).checkpoint is not None
