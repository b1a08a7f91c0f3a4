"""A state saved by 4 ranks is that state at 2 and at 8, bit for bit, and each rank opens the files that hold its
part; what does not fit is told to all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.fake_agent import FakeAgent
from support.fork_ranks import run_stages

# Three jobs, of 14 ranks, in the first test's set-up: 7 s on two idle cores, and once for all of them.
pytestmark = pytest.mark.xdist_group("sharded")
LOOP = Path(__file__).with_name("loop_sharded.py")
PRELOAD = (
    "trainjob.torch.sharded",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint.state_dict",
    "torch._dynamo",
)
STAGES = {"save": 4, "load-2": 2, "load-8": 8}

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each rank of each stage saw. One process imports torch and forks them all."""
    here = tmp_path_factory.mktemp("sharded")
    stages = {
        name: [{"STAGE": name, "HERE": str(here), "RANK": str(rank), "WORLD_SIZE": str(size)} for rank in range(size)]
        for name, size in STAGES.items()
    }
    with FakeAgent(here / "job", STAGES["save"]) as agent:
        stages["save"] = [{**agent.environ(rank), **environ} for rank, environ in enumerate(stages["save"])]
        ended = run_stages(list(stages.values()), LOOP, here, PRELOAD)
    assert ended.code == 0, ended.err
    warnings = ended.err.count("Warning") - ended.err.count("Warning: TypedStorage is deprecated")  # by an older torch
    assert warnings == ended.err.count("was not reported") == 3  # ranks 1 to 3, where rank 0 reports alone
    return {
        name: [json.loads((here / f"{name}-{rank}.json").read_text()) for rank in range(size)]
        for name, size in STAGES.items()
    }


@pytest.mark.parametrize("stage", ["load-2", "load-8"])
def test_model_optimizer_and_values_are_what_was_saved(seen: Seen, stage: str) -> None:
    assert [rank["differing"] for rank in seen[stage]] == [[]] * STAGES[stage]
    assert seen[stage][0]["leaves"] > 40  # 8 parameters, their 3 optimizer entries, the parameter group's settings
    assert all(rank["count"] == 5 and rank["note"] == ["fsdp", 1, [1.0, 1.0]] for rank in seen[stage])


@pytest.mark.parametrize(("stage", "most"), [("load-2", 0.58), ("load-8", 0.25)])
def test_a_rank_opens_only_the_files_that_hold_its_part(seen: Seen, stage: str, most: float) -> None:
    """Pieces are tiny here, so that torch's header of each and the metadata weigh much: half and an eighth are the
    least.
    """
    for rank in seen[stage]:
        assert sum(rank["opened"].values()) <= most * rank["total"]
        assert sum(rank["opened for the model"].values()) <= 0.55 * sum(rank["opened"].values())


def test_every_rank_writes_its_share_under_names_of_its_own_in_bounded_files(seen: Seen) -> None:
    wrote = [rank["wrote"] for rank in seen["save"]]
    assert [".metadata" in files for files in wrote] == [True, False, False, False]
    assert all(
        name == ".metadata" or name.startswith(f"__{rank}_") for rank, files in enumerate(wrote) for name in files
    )
    assert max(size for files in wrote for size in files.values()) < 64 * 1024 * 1.3
    shares = [sum(files.values()) for files in wrote]
    assert max(shares) < 1.2 * min(shares)


def test_report_moves_the_files_away(seen: Seen) -> None:
    assert [rank["left"] for rank in seen["save"]] == [False] * 4


def test_what_all_ranks_have_alike_is_written_once_and_by_all(seen: Seen) -> None:
    assert all(64 * 1024 <= rank["copies"] < 80 * 1024 for rank in seen["save"])


@pytest.mark.parametrize("what", ["tensor", "async", "into plain tensors", "by torch's load"])
def test_tensor_parallel_placements_change_into_others(seen: Seen, what: str) -> None:
    """For async: with the values at the time of the call, although training went on."""
    assert [rank[what] for rank in seen["load-2"]] == [[], []]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("lacking", ["does not have 'model.up.weigth'", "nearest to the first: 'model.up.weight'", "strict=False"]),
        ("shape", ["'model.up.weight' has shape [512, 128] in the checkpoint and [512, 64] in the state"]),
        ("on rank 1", ["does not have 'model.nothing'"]),
        ("rank 0 alone", ["1-1-4 lacks files", "ranks [1, 2, 3] did not report theirs", "to the same report()"]),
        ("torch's own error", ["Missing key in checkpoint state_dict: t9"]),
    ],
)
def test_what_does_not_fit_is_named_on_every_rank(seen: Seen, what: str, words: list[str]) -> None:
    for rank in seen["load-2"]:
        for word in words:
            assert word in rank[what]


def test_a_failure_names_the_rank_that_had_it(seen: Seen) -> None:
    assert "failed on rank 1" in seen["load-2"][0]["on rank 1"]
    sentences = [rank["unpicklable on rank 2"] for rank in seen["save"]]
    assert all("'value2' cannot be pickled" in sentence for sentence in sentences)
    assert ["failed on rank 2" in sentence for sentence in sentences] == [True, True, False, True]


def test_not_strict_keeps_what_the_checkpoint_lacks(seen: Seen) -> None:
    assert all(rank["not strict"] == [[1.0, 1.0], False] for rank in seen["load-2"])
