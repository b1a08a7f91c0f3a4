"""examples/orbax with the real libraries, as docs/frameworks.md runs it: a killed rank, other numbers of ranks, and what
else reads the checkpoint.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.isolation import ROOT
from support.spoken import said
from trainjob import Result

STRUCK = str(Path(__file__).with_name("struck.py"))
EXAMPLE = str(ROOT / "examples" / "orbax" / "train.py")
STEPS = ("--steps", "40", "--save-every", "10")
LIMIT_S = 500
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * LIMIT_S + 30),
    pytest.mark.skipif(find_spec("orbax") is None, reason="orbax-checkpoint is not installed: make test-frameworks"),
]


def run(here: Path, name: str, *words: str, workers: int = 2, options: tuple[str, ...] = ()) -> str:
    """What is shown."""
    job = ["--workers", str(workers), "--name", name, "--storage", str(here), "--prefork", "Never", *options]
    return said(["-m", "trainjob.cli.main", "run", words[0], *job, "--", *words[1:]], here, limit_s=LIMIT_S)


def losses(here: Path, name: str) -> dict[int, float]:
    """What was reported at each step at last."""
    return {row["step"]: row["metrics"]["loss"] for row in Result.from_path(str(here / "default" / name)).rows}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an undisturbed run is."""
    here = tmp_path_factory.mktemp("plain")
    shown = run(here, "plain", EXAMPLE, *STEPS)
    assert "gave different files" not in shown and "WARNING:absl" not in shown, shown
    assert sorted(losses(here, "plain")) == [10, 20, 30, 40]
    return here


def saved(here: Path, number: int) -> Path:
    return here / "default" / "plain" / "checkpoints" / f"1-1-{number}"


def test_a_killed_rank_changes_no_number(tmp_path: Path, plain: Path) -> None:
    shown = run(tmp_path, "struck", STRUCK, "3", EXAMPLE, *STEPS)
    assert "attempt 2 resumes from checkpoint 1-1-2" in shown, shown
    assert losses(tmp_path, "struck") == losses(plain, "plain")


@pytest.mark.parametrize("workers", [1, 4])
def test_it_goes_on_at_another_number_of_ranks(tmp_path: Path, plain: Path, workers: int) -> None:
    """To numbers that are the same but for rounding."""
    run(tmp_path, "other", EXAMPLE, *STEPS, workers=workers, options=("--resume-from", str(saved(plain, 2))))
    found, expected = losses(tmp_path, "other"), losses(plain, "plain")
    assert sorted(found) == [30, 40], "it continued, and did not begin again"
    assert found == pytest.approx({step: expected[step] for step in (30, 40)}, rel=1e-4)


READS = """
import json, sys
import numpy as np
import orbax.checkpoint as ocp

wanted = {"in": np.zeros((4, 16), "f"), "bias": np.zeros(16, "f"), "out": np.zeros(16, "f")}
found = ocp.StandardCheckpointer().restore(sys.argv[1], {"step": 0, "weights": wanted})
assert found["step"] == 20
print(json.dumps({name: np.asarray(found["weights"][name]).tolist() for name in ("in", "bias", "out")}))
"""


def test_orbax_alone_reads_what_two_ranks_have_written(plain: Path, tmp_path: Path) -> None:
    """Each weight is there, and none is a piece that was never written (which would be zeros)."""
    shown = said(["-c", READS, str(saved(plain, 2) / "orbax")], tmp_path, limit_s=LIMIT_S)
    found = json.loads(shown.strip().splitlines()[-1])
    assert [len(found["in"]), len(found["in"][0]), len(found["bias"]), len(found["out"])] == [4, 16, 16, 16]
    assert all(each != 0 for row in (*found["in"], found["bias"], found["out"]) for each in row)


FORGETS = """
import jax.numpy as jnp
import trainjob
trainjob.report({}, checkpoint=trainjob.orbax.save({"weights": jnp.ones(4)}), step=1)
"""


def test_ranks_of_which_jax_does_not_know_are_refused(tmp_path: Path) -> None:
    (tmp_path / "forgets.py").write_text(FORGETS)
    with pytest.raises(AssertionError, match=r"the job has 2 ranks, and JAX counts 1.*trainjob\.jax\.initialize\(\)"):
        run(tmp_path, "forgets", str(tmp_path / "forgets.py"), options=("--max-failures", "0"))


TREES = """
import sys
import numpy as np
import trainjob, trainjob.jax
trainjob.jax.initialize()
rank = trainjob.get_context().rank
state = {"w": np.arange(4.0), "rate": np.float32(0.1), "many": np.int64(2**40), "on": np.bool_(True)}
if sys.argv[1] == "differs":
    state |= {"mine": np.ones(2)} if rank else {}
if checkpoint := trainjob.get_checkpoint():
    found = trainjob.orbax.load(state, checkpoint)
    assert all(type(found[name]) is type(state[name]) and np.all(found[name] == state[name]) for name in state), found
    print("the same numbers", flush=True)
trainjob.report({}, checkpoint=trainjob.orbax.save(state), step=1)
raise SystemExit(0 if trainjob.get_context().attempt > 1 else 1)
"""


def test_a_rank_with_another_tree_is_told_when_it_saves(tmp_path: Path) -> None:
    """Rank 0's description of the tree is the checkpoint's: what it does not have could not be loaded again."""
    (tmp_path / "trees.py").write_text(TREES)
    with pytest.raises(AssertionError, match="the tree of rank 1 has other names or shapes than rank 0's"):
        run(tmp_path, "trees", str(tmp_path / "trees.py"), "differs", options=("--max-failures", "0"))


def test_numpys_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "trees.py").write_text(TREES)
    shown = run(tmp_path, "trees", str(tmp_path / "trees.py"), "same", options=("--max-failures", "1"))
    assert shown.count("the same numbers") == 2, shown


OTHER = """
import tempfile
import jax.numpy as jnp
import trainjob
if checkpoint := trainjob.get_checkpoint():
    trainjob.orbax.load({"weights": jnp.ones(4)}, checkpoint)
trainjob.report({}, checkpoint=trainjob.Checkpoint.from_dict({"step": 1}), step=1)
raise SystemExit(1)
"""


def test_a_checkpoint_that_is_not_orbaxs_is_told(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OTHER)
    with pytest.raises(AssertionError, match=r"holds no folder 'orbax': it was not made by trainjob\.orbax\.save"):
        run(tmp_path, "other", str(tmp_path / "other.py"), workers=1, options=("--max-failures", "1"))
