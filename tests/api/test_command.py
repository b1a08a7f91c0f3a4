"""command.py: which command lines are Python running one script or module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob_api.command import ignores_environment, launcher_of, parse_python


@pytest.mark.parametrize(
    ("line", "flags", "is_module", "target", "arguments"),
    [
        ("python train.py", [], False, "train.py", []),
        ("python3 train.py --lr 0.1 -m x", [], False, "train.py", ["--lr", "0.1", "-m", "x"]),
        ("/opt/conda/bin/python3.12 -u train.py", ["-u"], False, "train.py", []),
        ("python3.13t train.py", [], False, "train.py", []),
        ("python -m pkg.train a b", [], True, "pkg.train", ["a", "b"]),
        ("python -mpkg.train", [], True, "pkg.train", []),
        ("python -uBm pkg.train a", ["-uB"], True, "pkg.train", ["a"]),
        ("python -W ignore -Xdev -OO train.py", ["-W", "ignore", "-Xdev", "-OO"], False, "train.py", []),
        ("python -uWignore train.py", ["-uWignore"], False, "train.py", []),
        ("python --check-hash-based-pycs never train.py", ["--check-hash-based-pycs", "never"], False, "train.py", []),
    ],
)
def test_plain_python(line: str, flags: list[str], is_module: bool, target: str, arguments: list[str]) -> None:
    command = line.split()
    assert parse_python(command) == (command[0], flags, is_module, target, arguments)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python",
        "python -",
        "python -u",
        "python -c print(1)",
        "python -uc print(1)",
        "python -m",
        "python -W",
        "python --version",
        "python -V",
        "python2 train.py",
        "pythonic train.py",
        "bash -c python",
        "sh run.sh",
        "./train",
        "torchrun train.py",
        "accelerate launch train.py",
        "python /usr/local/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python -u -m torch.distributed.launch train.py",
        "python -m accelerate.commands.launch train.py",
        "python -m deepspeed.launcher.runner train.py",
    ],
)
def test_anything_else(line: str) -> None:
    assert parse_python(line.split()) is None


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python train.py -I", None),
        ("python -uP -O train.py", None),
        ("python -W Error -XE -WIgnore -uWI train.py", None),
        ("python --check-hash-based-pycs never train.py", None),
        ("python -u -I train.py", "-I"),
        ("python -uE -m pkg.train", "-E"),
        ("python -X dev -sIu train.py", "-I"),
    ],
)
def test_options_that_make_python_ignore_its_environment(line: str, option: str | None) -> None:
    command = parse_python(line.split())
    assert command is not None and ignores_environment(command.flags) == option


def test_empty_words_are_no_script() -> None:
    assert parse_python(["python", ""]) is None


def test_python_itself_agrees_on_the_flags(tmp_path: Path) -> None:
    """What we call flags, Python takes as its own: script and arguments arrive as we read them."""
    script = tmp_path / "s.py"
    script.write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-u", "-BW", "ignore", "-Xdev", "-sE", str(script), "-m", "x"]
    parsed = parse_python(["python", *command[1:]])
    assert parsed is not None and parsed.target == str(script)
    out = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout
    assert out.strip() == str(parsed.arguments)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["/opt/venv/bin/torchrun", "train.py"], "torchrun"),
        (["python3", "-u", "-m", "torch.distributed.run", "train.py"], "python -m torch.distributed.run"),
        (["python", "/opt/bin/torchrun", "train.py"], "torchrun"),
        (["accelerate", "launch", "train.py"], "accelerate"),
        (["python", "train.py", "torchrun"], None),
        (["python", "-m", "mine"], None),
        (["bash", "-c", "torchrun train.py"], None),
        ([], None),
    ],
)
def test_what_starts_the_processes_of_a_pod_itself(command: list[str], launcher: str | None) -> None:
    assert launcher_of(command) == launcher
