"""What may stand where and import what: the guards that keep the control side and the training side apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.isolation import ROOT, SOURCES, complaints, modules_of
from support.oldest_python import oldest_python
from support.patience import HANG_S

WORKER_SIDE = [
    "trainjob_api.contract",
    "trainjob_api.nonfinite",
    "trainjob_api.wire",
    "trainjob_api.command",
    "trainjob_api.first_path",
    "trainjob.agent",
    "trainjob.session",
    "trainjob.checkpoint",
]
"""What runs in a worker container with nothing but a standard library."""

HEAVY = [
    "pydantic",
    "aiohttp",
    "kopf",
    "kubernetes",
    "torch",
    "numpy",
    "yaml",
    "cloudpickle",
    "rich",
    "boto3",
    "awscrt",
]


def test_the_operators_folder_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), (
        "operator/__init__.py would shadow the standard library's module `operator`"
    )
    assert not (ROOT / "worker-image" / "__init__.py").exists()


def test_the_standard_librarys_operator_is_found_from_the_root() -> None:
    code = "import operator; print(operator.__file__); operator.add"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert run.returncode == 0 and str(ROOT / "operator") not in run.stdout, run.stdout + run.stderr


@pytest.mark.parametrize("package", ["trainjob_api", "trainjob_operator", "trainjob"])
def test_each_import_root_is_typed(package: str) -> None:
    assert any((source / package / "py.typed").is_file() for source in SOURCES)


def test_the_operator_imports_without_torch_and_the_training_side() -> None:
    assert (
        complaints(
            sys.executable,
            ["torch", "numpy", "trainjob", "cloudpickle", "rich"],
            modules_of("trainjob_api", "trainjob_operator"),
        )
        == ""
    )


@pytest.mark.parametrize("package", WORKER_SIDE)
def test_the_worker_side_imports_with_the_standard_library_alone(package: str) -> None:
    modules = modules_of(package)
    if not modules:
        pytest.skip(f"{package} is not there yet")
    assert complaints(sys.executable, HEAVY, modules) == ""


def test_the_public_package_and_the_command_line_load_nothing_heavy() -> None:
    assert (
        complaints(
            sys.executable,
            ["torch", "numpy", "kopf", "kubernetes", "boto3"],
            ["trainjob", *modules_of("trainjob.cli", "trainjob.launch")],
        )
        == ""
    )


def test_the_blocker_blocks() -> None:
    assert "json may not be imported" in complaints(sys.executable, ["json"], ["trainjob_api.wire"])


def test_the_worker_side_compiles_and_imports_on_the_oldest_python() -> None:
    assert complaints(oldest_python(), HEAVY, modules_of(*WORKER_SIDE)) == ""


def test_the_torch_package_and_the_public_names_import_on_the_oldest_python() -> None:
    """Without torch: its modules are loaded when one of their names is used, and parse on that Python (ruff's target
    for them).
    """
    assert (
        complaints(
            oldest_python(),
            HEAVY,
            ["trainjob", "trainjob.torch", "trainjob.torch.group", "trainjob.torch.place", "trainjob.torch.device"],
        )
        == ""
    )


def test_layers() -> None:
    """The import contracts of pyproject.toml."""
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.skip(f"{program} is not installed: `make setup`")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    run = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
