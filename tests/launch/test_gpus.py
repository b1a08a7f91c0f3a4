"""GPUs are divided by CUDA_VISIBLE_DEVICES, and more than there are is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainjob.launch import job as jobs
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import checks, gpus
from trainjob.screen.asked import Asker
from trainjob_api.v1alpha1 import TrainJob


@pytest.mark.parametrize(
    ("value", "devices"),
    [("0,1", ["0", "1"]), ("", []), ("-1", []), ("3, 1,-1,2", ["3", "1"]), ("GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"])],
)
def test_visible_devices(value: str, devices: list[str]) -> None:
    assert gpus.visible({gpus.VISIBLE: value}) == devices


def test_pods_get_their_own_devices_and_give_them_back() -> None:
    pool = gpus.GpuPool(["0", "1", "2", "3"])
    assert pool.take("a", 2) == ["0", "1"]
    assert pool.take("b", 2) == ["2", "3"]
    with pytest.raises(LaunchError, match="c needs 1 GPUs and 0 of 4 are free"):
        pool.take("c", 1)
    pool.give_back("a")
    pool.give_back("a")
    assert pool.take("c", 1) == ["0"]


def test_more_than_there_are_is_refused_with_the_way_out() -> None:
    gpus.check(2, ["0", "1"], 2, Asker.PYTHON)
    with pytest.raises(LaunchError, match=r"1 GPU for 1 rank, and no GPU"):
        gpus.check(1, [], 1, Asker.PYTHON)
    with pytest.raises(LaunchError, match=r"4 GPUs for 4 ranks, and 2 visible.*num_workers"):
        gpus.check(4, ["0", "1"], 4, Asker.PYTHON)
    with pytest.raises(LaunchError, match="no GPU is visible"):
        gpus.check(1, [], 1, Asker.PYTHON)


@pytest.mark.parametrize(
    ("elastic", "gpus_each", "size"),
    [
        ({"minWorkers": 1, "maxWorkers": 8}, 1, 4),
        ({"minWorkers": 1, "maxWorkers": 8}, 2, 2),
        ({"minWorkers": 1, "maxWorkers": 8, "allowedSizes": [1, 3, 8]}, 1, 3),
        ({"minWorkers": 1, "maxWorkers": 8}, 0, 8),
    ],
)
def test_an_elastic_job_begins_with_as_many_workers_as_there_are_gpus_for(
    tmp_path: Path, elastic: dict[str, Any], gpus_each: int, size: int
) -> None:
    wished = script_job(tmp_path, elastic, gpus_each)
    fitted = checks.fitted(wished, {gpus.VISIBLE: "0,1,2,3"})
    assert (fitted.spec.workers, wished.spec.workers) == (size, 8)
    checks.check(fitted, {"PATH": os.environ["PATH"], gpus.VISIBLE: "0,1,2,3"}, str(tmp_path))


def test_without_gpus_for_the_least_it_is_refused_by_the_least(tmp_path: Path) -> None:
    wished = script_job(tmp_path, {"minWorkers": 6, "maxWorkers": 8}, 1)
    fitted = checks.fitted(wished, {gpus.VISIBLE: "0,1,2,3"})
    with pytest.raises(LaunchError, match=r"needs 6 GPUs for 6 ranks, and 4 visible"):
        checks.check(fitted, {"PATH": os.environ["PATH"], gpus.VISIBLE: "0,1,2,3"}, str(tmp_path))


def test_a_job_of_one_size_is_left_as_it_is(tmp_path: Path) -> None:
    wished = script_job(tmp_path, None, 1)
    assert checks.fitted(wished, {gpus.VISIBLE: "0,1,2,3"}) is wished


def script_job(tmp_path: Path, elastic: dict[str, Any] | None, gpus_each: int) -> TrainJob:
    (tmp_path / "train.py").write_text("")
    job = jobs.from_script(jobs.ScriptJob(command=(sys.executable, "train.py"), workers=8, gpus_per_worker=gpus_each))
    return (
        job
        if elastic is None
        else TrainJob.model_validate(job.to_json() | {"spec": job.spec.to_json() | {"elastic": elastic}})
    )
