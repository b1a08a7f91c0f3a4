"""Whether a worker has accelerators, by its devices, and what its ranks are told where it has none."""

from __future__ import annotations

import pytest

from trainjob.agent.processes import accelerators, rank_command


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
        (["dxg"], None, True),
        (["neuron12"], None, True),
        (["infiniband"], None, True),
    ],
)
def test_accelerators_are_known_by_their_devices(names: list[str], visible: str | None, expected: bool) -> None:
    environ = {} if visible is None else {accelerators.VISIBLE: visible}
    assert accelerators.found(names, environ) is expected


@pytest.mark.parametrize(
    ("names", "visible", "expected"),
    [
        (["null", "shm"], None, False),
        (["nvidia0", "nvidia1", "infiniband"], None, False),
        (["nvidia0", "kfd"], None, True),
        (["dxg"], None, True),
        (["neuron12"], None, True),
        (["kfd"], "", False),
    ],
)
def test_forks_were_tried_with_those_of_nvidia_alone(names: list[str], visible: str | None, expected: bool) -> None:
    environ = {} if visible is None else {accelerators.VISIBLE: visible}
    assert accelerators.untried(names, environ) is expected


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["null"], {}, "true"),
        (["null", "nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, "true"),
        (["null", "nvidia0"], {}, None),
        (["null", "dri"], {}, None),
        (["null"], {"ACCELERATE_USE_CPU": "false"}, "false"),
    ],
)
def test_accelerate_is_told_where_there_is_no_accelerator(
    names: list[str], given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "names", lambda: names)
    assert rank_command.environment_of_all(given, ["python", "x.py"], 2).get("ACCELERATE_USE_CPU") == expected
