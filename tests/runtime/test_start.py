"""The runtime folder as a worker pod has it: `install` fills it, `start` finds a Python and becomes the agent."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.patience import HANG_S
from support.runtime_image import VERSIONS, image_content, python_of
from trainjob_api import contract

SHELLS = [["/bin/sh"], ["dash"], ["bash"], ["busybox", "sh"]]
RECORDER = '#!/bin/sh\ncase "$*" in *version_info*) exit {verdict} ;; esac\necho "$0 $*"\necho "path=$PYTHONPATH"\n'


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pod's runtime folder, filled by `install`, read-only as it is mounted."""
    folder = tmp_path_factory.mktemp("pod")
    target = folder / "trainjob"
    target.mkdir()
    subprocess.run([image_content(folder) / "install", target], check=True, timeout=HANG_S)
    for path in [target, *target.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    return target


def script(path: Path, verdict: int = 0) -> Path:
    """A program that says how it was called; as a Python it is new enough (0) or not (1)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECORDER.format(verdict=verdict))
    path.chmod(0o755)
    return path


def call(
    runtime: Path, *words: str, env: Mapping[str, str], shell: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*(shell or []), str(runtime / "start"), "--", *words]
    return subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=HANG_S, check=False)


def without_shells(*words: str) -> list[str]:
    """A command in a mount namespace of its own in which no shell of this machine can be executed."""
    shells = {os.path.realpath(found) for name in ("sh", "dash", "bash") if (found := shutil.which(name))}
    hide = "".join(f"mount --bind /dev/null {shell}; " for shell in sorted(shells))
    return ["unshare", "--mount", "sh", "-c", f'{hide}exec "$@"', "sh", *words]


# --- install ----------------------------------------------------------------------------------------------------------


def test_the_folder_is_readable_for_any_user_whatever_the_umask(tmp_path: Path) -> None:
    source, target = image_content(tmp_path), tmp_path / "target"
    target.mkdir()
    for _ in range(2):  # a pod's sandbox may be made anew: init containers then run again
        subprocess.run(["sh", "-c", f"umask 077; {source}/install {target}"], check=True, timeout=HANG_S)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in target.rglob("*")}
    assert target / "lib" / "trainjob" / "agent" / "__main__.py" in modes
    assert all(mode & 0o444 == 0o444 and (mode & 0o111 == 0o111 or path.is_file()) for path, mode in modes.items())
    assert modes[target / "start"] & 0o111 == 0o111


def test_an_image_needs_no_shell(tmp_path: Path, runtime: Path) -> None:
    if os.geteuid() != 0 or not os.path.exists("/bin/busybox"):
        pytest.skip("needs root for a mount namespace, and busybox as the runtime image's shell")
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    ended = subprocess.run(
        without_shells("env", "-i", f"PATH={tmp_path}", str(runtime / "start"), "--", str(python), "train.py"),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == contract.EXIT_BAD_CONFIG, "the agent itself, which was given no environment"
    assert "is not set" in ended.stderr, ended.stderr
    gone = subprocess.run(without_shells("/bin/sh", "-c", "true"), capture_output=True, timeout=HANG_S)
    assert gone.returncode != 0, "there really was none"


def test_install_says_when_it_cannot(tmp_path: Path) -> None:
    run = subprocess.run(
        [image_content(tmp_path) / "install", tmp_path / "absent" / "folder"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode != 0 and "absent" in run.stderr


# --- Which Python -----------------------------------------------------------------------------------------------------


def test_the_commands_own_python_comes_first(runtime: Path, tmp_path: Path) -> None:
    own, other = script(tmp_path / "venv/bin/python3.12"), script(tmp_path / "bin/python3")
    run = call(runtime, str(own), "train.py", "--name", "a b", env={"PATH": f"{other.parent}"})
    assert run.stdout == f"{own} -E -S {runtime}/agent.py -- {own} train.py --name a b\npath={runtime}/lib\n", (
        run.stderr
    )


@pytest.mark.parametrize(
    "words", [["torchrun", "train.py"], ["bash", "-c", "python train.py"], ["./run.sh"], ["pythonista"]]
)
def test_any_other_command_takes_the_paths_python(runtime: Path, tmp_path: Path, words: list[str]) -> None:
    found = script(tmp_path / "bin/python3")
    run = call(runtime, *words, env={"PATH": f"{found.parent}:/bin", "PYTHONPATH": "/app"})
    assert run.stdout.startswith(f"{found} ") and f"path=/app:{runtime}/lib" in run.stdout, run.stderr


def test_a_python_that_is_too_old_is_passed_over(runtime: Path, tmp_path: Path) -> None:
    old, found = script(tmp_path / "old/python", verdict=1), script(tmp_path / "bin/python")
    assert call(runtime, str(old), "x.py", env={"PATH": f"{found.parent}"}).stdout.startswith(f"{found} ")


def test_a_launcher_of_a_virtual_environment_off_the_path(runtime: Path, tmp_path: Path) -> None:
    beside = script(tmp_path / "venv/bin/python3")
    run = call(runtime, str(tmp_path / "venv/bin/torchrun"), "x.py", env={"PATH": "/nowhere"}, shell=["/bin/sh"])
    assert run.stdout.startswith(f"{beside} ")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: " ".join(words))
def test_no_python_is_one_clear_line(runtime: Path, shell: list[str]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]} on this machine")
    program = [str(shutil.which(shell[0])), *shell[1:]]
    run = call(runtime, "python3.99", "train.py", env={"PATH": "/nowhere"}, shell=program)
    assert run.returncode == contract.EXIT_BAD_CONFIG
    assert (
        run.stderr.count("\n") == 1
        and "No Python 3.9 or newer" in run.stderr
        and "python3.99" in run.stderr
        and "PATH=/nowhere" in run.stderr
    )


# --- The agent behind it ----------------------------------------------------------------------------------------------

TRAIN = """
import os, sys, trainjob
print("rank", trainjob.get_context().get_world_rank(), sys.version_info[:2], sys.argv[1:], flush=True)
trainjob.report({"loss": 1.0})
"""


def finish(rig: Rig) -> None:
    """One attempt to its end, then the agent's."""
    rig.run(1)
    rig.wait(lambda: rig.ended(0), "the rank has ended")
    assert rig.rank(0)["kind"] == contract.END_OK, rig.text(0)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_runs_with_the_python_that_it_names(runtime: Path, tmp_path: Path, version: str) -> None:
    python = python_of(version)
    env = {"PYTHONPATH": "", "HOME": ""}
    with Rig(
        tmp_path,
        script=TRAIN,
        agents=1,
        python=str(runtime / "start"),
        entry=(),
        command=[python, "train.py", "--lr", "1"],
        env=env,
    ) as rig:
        finish(rig)
        rig.wait_text(0, f"rank 0 ({version.replace('.', ', ')}) ['--lr', '1']")


@pytest.mark.slow
def test_the_users_modules_are_not_the_agents(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "job" / "trainjob").mkdir(parents=True)
    for name in ("queue.py", "asyncio.py", "json.py", "trainjob/__init__.py"):
        (tmp_path / "job" / name).write_text("raise SystemExit('a module of the user')\n")
    command = ["sh", "-c", "echo the command runs"]
    env = {"PYTHONPATH": str(tmp_path / "job"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with Rig(tmp_path, agents=1, python=str(runtime / "start"), entry=(), command=command, env=env) as rig:
        finish(rig)
        rig.wait_text(0, "the command runs")


@pytest.mark.slow
def test_a_user_without_name_rights_and_home() -> None:
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("needs root to be somebody else, and a Python that everybody may run")
    nobody: dict[str, Any] = {"user": 54321, "group": 54321, "extra_groups": []}
    # Not below tmp_path, which is closed to other users.
    with tempfile.TemporaryDirectory(prefix="trainjob-start-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        target = folder / "trainjob"
        target.mkdir()
        target.chmod(0o777)  # as a kubelet makes an emptyDir
        subprocess.run([image_content(folder) / "install", target], check=True, timeout=HANG_S, **nobody)
        run = subprocess.run(
            [target / "start", "--", "true"],
            env={},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
            **nobody,
        )
    assert run.returncode == contract.EXIT_BAD_CONFIG and "TRAINJOB_SLOT is not set" in run.stderr
