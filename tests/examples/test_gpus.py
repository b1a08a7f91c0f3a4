"""examples/gpus: its commands and its manifest ask for the GPUs that they say, and are refused where there are none.
Nothing is started; no GPU is needed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.isolation import ROOT
from trainjob.cli.main import main
from trainjob.launch.local import gpus
from trainjob_api import defaults
from trainjob_api.contract import CLI_ERROR, CLI_OK
from trainjob_api.v1alpha1 import TrainJob

FOLDER = ROOT / "examples" / "gpus"
EIGHT = "0,1,2,3,4,5,6,7"
COMMANDS = re.findall(
    r"^(?:CUDA_VISIBLE_DEVICES=(\S+) )?tj (run [^#\n]*)",
    (FOLDER / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@pytest.fixture(autouse=True)
def at_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])))


def dry_run(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    return main([*words[:at], "--dry-run", *words[at:]])


def sizes(printed: str) -> tuple[int, int, int]:
    """Workers, ranks of each, GPUs of each."""
    document: dict[str, Any] = yaml.safe_load(printed)
    spec = TrainJob.model_validate(document).spec
    return (
        spec.workers,
        defaults.processes_per_worker(spec),
        defaults.gpu_limit(defaults.trainer_container(spec)[1]),
    )


@pytest.mark.parametrize(("devices", "command"), COMMANDS)
def test_a_command_of_the_page_has_a_rank_for_each_gpu(
    devices: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    asked = int(words[words.index("--gpus") + 1])
    monkeypatch.setenv(gpus.VISIBLE, devices or EIGHT)
    assert dry_run(words) == CLI_OK
    assert sizes(capsys.readouterr().out) == (1, asked, asked)
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert dry_run(words) == CLI_ERROR
    assert f"needs {asked} GPUs for {asked} ranks, and no GPU is visible here" in capsys.readouterr().err


def test_the_page_has_both_commands() -> None:
    assert [devices for devices, _ in COMMANDS] == ["", "2,3"]


def test_the_manifest_is_eight_ranks_each_with_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "-f", str(FOLDER / "trainjob.yaml"), "--local", "--storage", str(tmp_path / "checkpoints")]
    monkeypatch.setenv(gpus.VISIBLE, EIGHT)
    assert dry_run(words) == CLI_OK
    workers, each, of_each = sizes(capsys.readouterr().out)
    assert (workers, each, of_each) == (2, 4, 4)
    pool = gpus.GpuPool(gpus.visible(os.environ))
    assert [pool.take(str(worker), of_each) for worker in range(workers)] == [list("0123"), list("4567")]
    for devices, there in (("0,1,2,3", "4 visible"), ("", "no GPU is visible here")):
        monkeypatch.setenv(gpus.VISIBLE, devices)
        assert dry_run(words) == CLI_ERROR
        assert f"needs 8 GPUs for 8 ranks, and {there}" in capsys.readouterr().err
