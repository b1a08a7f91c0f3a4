"""GPUs are divided by CUDA_VISIBLE_DEVICES, and more than there are is refused."""

from __future__ import annotations

import pytest

from trainjob.launch.errors import LaunchError
from trainjob.launch.local import gpus


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
    gpus.check(2, ["0", "1"], 2)
    with pytest.raises(LaunchError, match=r"4 GPUs for 4 ranks, and 2 visible.*num_workers"):
        gpus.check(4, ["0", "1"], 4)
    with pytest.raises(LaunchError, match="no GPU is visible"):
        gpus.check(1, [], 1)
