"""Which GPUs this machine has, and which pod gets which: for the local backend's kubelet.

Nothing here imports torch (seconds) or starts a process. The division goes by CUDA_VISIBLE_DEVICES, whose entries may
be numbers or UUIDs and are passed on as they stand.
"""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Mapping, Sequence

from trainjob.launch.errors import LaunchError
from trainjob.screen import wording
from trainjob.screen.asked import Asker

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that this launcher may use, as entries for CUDA_VISIBLE_DEVICES."""
    chosen = environment.get(VISIBLE)
    if chosen is None:
        return [str(number) for number in range(count_devices())]
    entries: list[str] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if not entry or entry.startswith("-"):  # CUDA stops at the first entry that names no device
            break
        entries.append(entry)
    return entries


def count_devices() -> int:
    """GPUs of this machine by the driver's library, else by its device files; 0 where there is neither."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    number = ctypes.c_uint(0)
    if library.nvmlInit_v2() != 0:
        return 0
    try:
        return int(number.value) if library.nvmlDeviceGetCount_v2(ctypes.byref(number)) == 0 else 0
    finally:
        library.nvmlShutdown()


class GpuPool:
    """Hands the visible GPUs out to pods and takes them back."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._free = list(devices)
        self._order = list(devices)
        self._held: dict[str, list[str]] = {}

    def take(self, pod: str, count: int) -> list[str]:
        """`count` GPUs for the pod. Raises LaunchError when fewer are free."""
        if count > len(self._free):
            raise LaunchError(f"{pod} needs {count} GPUs and {len(self._free)} of {len(self._order)} are free")
        given, self._free = self._free[:count], self._free[count:]
        self._held[pod] = given
        return given

    def give_back(self, pod: str) -> None:
        """The pod is gone: its GPUs are free again, in their old order."""
        self._free = sorted([*self._free, *self._held.pop(pod, [])], key=self._order.index)


ON_THE_CPU = "train on the CPU with --gpus 0"
_WAYS_OUT = {
    Asker.SHELL: f"lower --gpus or --workers, or {ON_THE_CPU}",
    Asker.PYTHON: "lower ScalingConfig.num_workers, or train on the CPU with use_gpu=False",
    Asker.MANIFEST: "lower spec.workers or the container's limit of nvidia.com/gpu (--workers and --gpus do it beside "
    "-f), or train on the CPU without that limit",
}


def check(needed: int, devices: Sequence[str], ranks: int, asker: Asker) -> None:
    """Refuse a job that needs more GPUs than are visible."""
    if needed > len(devices):
        there = f"{len(devices)} visible ({VISIBLE} or the driver says so)" if devices else "no GPU is visible here"
        raise LaunchError(
            f"the job needs {wording.count(needed, 'GPU')} for {wording.count(ranks, 'rank')}, and {there}: "
            f"{_WAYS_OUT[asker]}"
        )
