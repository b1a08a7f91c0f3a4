"""`tj completion`: what a shell offers is what the parser takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.patience import HANG_S
from trainjob.cli import completion
from trainjob.cli import parser as grammar

LISTED = "#!/bin/sh\necho digits; echo words\n"


def offered(shell: str, folder: Path, *words: str) -> list[str]:
    """What bash offers behind these words, the last of which is being typed; `tj list -o name` says digits, words."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    tj = folder / "tj"
    tj.write_text(LISTED)
    tj.chmod(0o755)
    (folder / "script").write_text(completion.script(shell))
    typed = " ".join(f"'{word}'" for word in ("tj", *words))
    ask = f"source ./script; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _tj; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", ask],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_names_are_offered(tmp_path: Path) -> None:
    assert offered("bash", tmp_path, "su") == ["submit", "suspend"]
    assert offered("bash", tmp_path, "run", "--wor") == ["--workers"]
    assert offered("bash", tmp_path, "checkpoints", "ver") == ["verify"]
    assert offered("bash", tmp_path, "checkpoints", "verify", "--mar") == ["--mark"]
    assert offered("bash", tmp_path, "logs", "--rank", "0", "dig") == ["digits"]
    assert "digits" not in offered("bash", tmp_path, "doctor", "")


def test_files_are_offered_for_scripts_and_behind_the_dashes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert offered("bash", tmp_path, "run", "tra") == ["train.py"]
    assert offered("bash", tmp_path, "run", "train.py", "--", "tra") == ["train.py"]


def test_every_command_and_option_is_in_every_script() -> None:
    known = completion.commands(grammar.build())
    assert {"", "run", "checkpoints", "checkpoints list", "completion"} <= set(known)
    for shell in completion.SHELLS:
        script = completion.script(shell)
        for each in known.values():
            for word in each.words:
                assert (f"-l {word[2:]} " if shell == "fish" and word.startswith("--") else word) in script, word


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_shell_that_is_here_takes_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n", "/dev/stdin"],
        input=completion.script(shell),
        env={**os.environ, "LC_ALL": "C"},  # of a locale that this machine does not have bash would speak
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
