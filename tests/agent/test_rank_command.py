"""What is executed for a rank, and what it finds in its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank_command import AttemptPlace, CannotRun, RankPlace
from trainjob_api import contract

SHARED = AttemptPlace(2, 1, None, "10.0.0.1", 29502, "/pod/run/a2.sock", "/pod/run", "/pod/tmp", "_1a2b3c_")
PLACE = RankPlace(rank=5, local_rank=1, world_size=8, local_world_size=2, node_rank=2, workers=4, processes=2)


def test_a_plain_script_is_run_by_the_session_with_the_users_own_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "train me.py"
    script.touch()
    assert rank_command.argv([sys.executable, "-u", "-W", "ignore", str(script), "--lr", "1"]) == [
        *[sys.executable, "-u", "-W", "ignore", "-m", "trainjob.session.rank", "--", str(script), "--lr", "1"]
    ]
    assert rank_command.argv([sys.executable, "-m", "package.train", "-x"])[-4:] == ["--", "-m", "package.train", "-x"]


def test_anything_else_is_tied_to_the_agent_and_left_as_it_is() -> None:
    words = rank_command.argv(["sh", "-c", "echo"])
    assert (
        words[0] == sys.executable
        and words[3].endswith("tether.py")
        and words[4] == str(os.getpid())
        and words[5:] == ["sh", "-c", "echo"]
    )


@pytest.mark.parametrize("words", [[sys.executable, "/no/train.py"], ["/no/python", "train.py"], ["no-such-command"]])
def test_what_is_not_there_is_named_with_the_place_that_was_searched(words: list[str]) -> None:
    with pytest.raises(CannotRun, match=r"is not there.*cwd"):
        rank_command.argv(words)


def test_a_ranks_environment() -> None:
    base = {"HOME": "/root", contract.ENV_PARENT_FD: "9", contract.ENV_TOKEN_FILE: "/token", contract.ENV_JOB: "digits"}
    env = rank_command.environment(base, [sys.executable, "train.py"], PLACE, SHARED)
    assert env["HOME"] == "/root" and env[contract.ENV_JOB] == "digits"
    assert contract.ENV_PARENT_FD not in env and contract.ENV_TOKEN_FILE not in env
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["NODE_RANK"]) == (
        "5",
        "1",
        "8",
        "2",
        "2",
    )
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["TMPDIR"]) == ("10.0.0.1", "29502", "/pod/tmp")
    assert env[contract.ENV_STORAGE] == "" and env[contract.ENV_STACK_FOLDER] == "/pod/run"
    assert "PYTHONPATH" not in env and "PET_NNODES" not in env
    assert [env[name] for name in contract.JAX_PLACE] == ["10.0.0.1:29502", "8", "5"]
    assert env["OMP_NUM_THREADS"].isdigit()


def test_the_users_own_settings_win() -> None:
    env = rank_command.environment(
        {"OMP_NUM_THREADS": "7", "PYTHONUNBUFFERED": ""}, [sys.executable, "train.py"], PLACE, SHARED
    )
    assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("7", "")


def test_another_python_finds_the_library(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    env = rank_command.environment({"PYTHONPATH": "/mine"}, [str(other), "train.py"], PLACE, SHARED)
    first, *roots = env["PYTHONPATH"].split(os.pathsep)
    assert first == "/mine" and {"trainjob", "trainjob_api"} <= {name for root in roots for name in os.listdir(root)}


def test_launchers_get_their_names() -> None:
    env = rank_command.environment({}, ["torchrun", "train.py"], PLACE, SHARED)
    assert not set(contract.JAX_PLACE) & set(env), "they are each rank's own, and the launcher tells its ranks"
    assert {n: env[n] for n in env if n.startswith("PET_")} == {
        "PET_NNODES": "4",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29502",
        "PET_RDZV_ENDPOINT": "10.0.0.1:29502",
        "PET_MAX_RESTARTS": "0",
    }
