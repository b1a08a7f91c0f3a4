"""restore() of a folder that holds nothing: it names the class that was asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainjob.launch import DataParallelTrainer, JaxTrainer, LaunchError, TorchTrainer


@pytest.mark.parametrize("trainer", [DataParallelTrainer, JaxTrainer, TorchTrainer])
def test_the_class_is_named(trainer: type[DataParallelTrainer], tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=f"of a {trainer.__name__}"):
        trainer.restore(tmp_path)


@pytest.mark.parametrize("trainer", [DataParallelTrainer, JaxTrainer, TorchTrainer])
def test_what_is_said_of_a_run_names_its_class(trainer: type[DataParallelTrainer]) -> None:
    assert trainer(lambda: None)._settings.trainer == trainer.__name__
