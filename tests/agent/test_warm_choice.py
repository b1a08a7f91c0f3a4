"""When ranks are forks of a warm parent, and what it imports: the rules alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank_command import AttemptPlace, RankPlace
from trainjob.agent.warm import choice
from trainjob.agent.warm.parent import command

PLAIN = ["python", "train.py"]


@pytest.mark.parametrize(
    ("wish", "words", "devices", "why"),
    [
        ("auto", PLAIN, False, None),
        ("auto", PLAIN, True, "has accelerators"),
        ("Always", PLAIN, True, None),
        ("Never", PLAIN, False, "is Never"),
        ("Always", ["torchrun", "train.py"], False, "a launcher"),
        ("Always", ["sh", "-c", "python train.py"], False, "a launcher"),
    ],
)
def test_why_not(tmp_path: Path, wish: str, words: list[str], devices: bool, why: str | None) -> None:
    found = choice.why_not(wish, words, choice.Place(str(tmp_path), devices, 1 << 40))
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "4"', "OMP_NUM_THREADS"),
        ("environ [ 'TORCH_LOGS' ]='+dynamo'", "TORCH_LOGS"),
        ('os.environ.setdefault("MKL_NUM_THREADS", "1")', "MKL_NUM_THREADS"),
        ('os.putenv("KMP_AFFINITY", "none")', "KMP_AFFINITY"),
        ('os.environ.update({"A": "1",\n  "PYTORCH_JIT": "0"})', "PYTORCH_JIT"),
        ('threads = os.environ["OMP_NUM_THREADS"]', None),
        ('if os.environ["OMP_NUM_THREADS"] == "4": pass', None),
        ('os.environ.get("TORCH_LOGS")', None),
        ('os.environ["MASTER_PORT"] = "1"; os.environ["NCCL_DEBUG"] = "INFO"', None),
    ],
)
def test_a_script_that_sets_what_torch_reads_at_its_import_is_not_forked(
    tmp_path: Path, line: str, name: str | None
) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\nimport torch\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(f"import os\n{line}\nimport torch\n")
    for words in (PLAIN, ["python", "-m", "package.train"]):
        place = choice.Place(str(tmp_path), False, None)
        found = choice.why_not("auto", words, place)
        assert (found is None) is (name is None)
        assert name is None or f"the script sets {name}," in (found or "")
        assert choice.why_not("Always", words, place) is None


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch\nprint(torch.load('model.pt'))\n", choice.TORCH),
        ("import torch\nadam = torch.optim.Adam([])\n", choice.AUTO),
        ("from trainjob.torch import prepare_model\n", choice.AUTO),
        ("from transformers import Trainer\n", choice.AUTO),
        ("import argparse, torch\nfrom torch import optim\n", choice.AUTO),
        ("def train():\n    import torch.optim\n", choice.AUTO),
        ("print('as torch.save() does')  # or import torch\n", ()),
        (None, choice.AUTO),
    ],
)
def test_what_is_imported_ahead(tmp_path: Path, text: str | None, modules: tuple[str, ...]) -> None:
    """`None`: the script is not there yet."""
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    assert choice.plan(None, PLAIN, str(tmp_path)) == (modules, True)
    assert choice.plan(["pandas"], PLAIN, str(tmp_path)) == (("pandas",), False)
    assert choice.plan(None, ["python", "-m", "package.train"], str(tmp_path)) == (choice.AUTO, True)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(text or "import torch.optim")
    assert choice.plan(None, ["python", "-m", "package.train"], str(tmp_path)) == (modules, True)


def test_where_memory_is_short_nothing_is_kept_ready(tmp_path: Path) -> None:
    short, enough = (choice.Place(str(tmp_path), False, room) for room in (choice.ROOM - 1, choice.ROOM))
    assert "511 MiB of memory left, less than 512" in (choice.why_not("auto", PLAIN, short) or "")
    assert choice.why_not("auto", PLAIN, enough) is None is choice.why_not("Always", PLAIN, short)
    assert choice.why_not_learn(choice.ROOM_TO_LEARN) is None is choice.why_not_learn(None)
    assert "less than 1536" in (choice.why_not_learn(choice.ROOM_TO_LEARN - 1) or "")


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("os.environ['HF_HOME'] = place", True),
        ("os.environ[name] = value", True),
        ("os.environ.update(more)", True),
        ("os.environ.setdefault('A', 'b')", True),
        ("os.putenv('A', 'b')", True),
        ("rank = int(os.environ['RANK'])", False),
        ("first = os.environ['RANK'] == '0'", False),
    ],
)
def test_a_script_that_changes_its_environment(tmp_path: Path, line: str, sets: bool) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    assert choice.sets_variables(PLAIN, str(tmp_path)) is sets


def test_a_ranks_environment_is_its_parents_but_for_its_place() -> None:
    words = [sys.executable, "train.py"]
    place, shared = RankPlace(1, 1, 4, 2, 0, 2, 2), AttemptPlace(3, 1, "/s", "host", 1, "/x.sock", "/x", "/tmp/x", "_")
    rank = rank_command.environment(os.environ, words, place, shared)
    parent = rank_command.environment_of_all(os.environ, words, 2)
    assert choice.differing(rank, parent) is None
    assert choice.differing({**rank, "OMP_NUM_THREADS": "9"}, parent) == "OMP_NUM_THREADS"
    assert choice.differing(rank, {**parent, "HF_HOME": "/models"}) == "HF_HOME"
    assert choice.differing(rank, rank_command.environment_of_all({**os.environ, "PYTHONHASHSEED": "1"}, words, 2))


def test_the_parents_command_line_has_room_for_a_ranks() -> None:
    argv = ["/usr/bin/python", "-O", "-m", "trainjob.session.rank", "--", "training_script.py", "--lr", "0.1"]
    found = command(argv, 7)
    assert found[:6] == ["/usr/bin/python", "-O", "-m", "trainjob.session.rank", "--warm", "7"]
    assert len("\0".join(found)) == len("\0".join(argv))
