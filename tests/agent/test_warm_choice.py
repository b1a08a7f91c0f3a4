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
    ("names", "visible", "expected"),
    [
        (["null", "shm"], None, False),
        (["nvidiactl", "nvidia-uvm"], None, False),
        (["nvidia0"], None, True),
        (["nvidia0"], "0,1", True),
        (["nvidia0"], "", False),
        (["nvidia0"], "-1", False),
        (["kfd"], None, True),
        (["neuron12"], None, True),
        (["infiniband"], None, True),
    ],
)
def test_accelerators_are_known_by_their_devices(names: list[str], visible: str | None, expected: bool) -> None:
    environ = {} if visible is None else {choice.VISIBLE: visible}
    assert choice.devices(names, environ) is expected


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
def test_why_not(wish: str, words: list[str], devices: bool, why: str | None) -> None:
    found = choice.why_not(wish, words, devices)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch\n", choice.AUTO),
        ("from transformers import Trainer\n", choice.AUTO),
        ("print('no more than this')\n", ()),
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
    assert found[:5] == ["/usr/bin/python", "-O", "-m", "trainjob.session.warm", "7"]
    assert len("\0".join(found)) == len("\0".join(argv))
