"""Whether a process may be forked where a GPU's driver is loaded: torch loads it at its import, and uses it much later."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here, for a stand-in of the driver")

STAND_INS = {
    "cuda": (
        "libcuda.so.1",
        "cuInit",
        "static int begun; int cuInit(unsigned flags) { begun = 1; return 0; }"
        "int cuDeviceGetCount(int *count) { if (!begun) return 3; *count = 1; return 0; }",
    ),
    "nvml": (
        "libnvidia-ml.so.1",
        "nvmlInit",
        "static int begun; int nvmlInit(unsigned flags) { begun = 1; return 0; }"
        "int nvmlDeviceGetCount_v2(unsigned *count) { if (!begun) return 1; *count = 1; return 0; }",
    ),
    "old": ("libcuda.so.1", "cuInit", "int cuInit(unsigned flags) { return 0; }"),
}
"""What a library is called, what begins to use it, and what it consists of: the calls answer as NVIDIA's do."""
ASKS = """
import ctypes, sys
from trainjob.session.warm import fitness
path, begins = sys.argv[1:]
before = fitness.Before()
driver = ctypes.CDLL(path)
for _ in range(2):
    print(fitness.unfit(before), fitness.unfit(before), sep=", ")  # asked twice: asking begins nothing
    getattr(driver, begins)(0)
"""


@pytest.mark.parametrize(
    ("which", "loaded", "used"),
    [
        ("cuda", None, "the GPU's driver is in use (libcuda.so)"),
        ("nvml", None, "the GPU's driver is in use (libnvidia-ml.so)"),
        ("old", "the GPU's driver is in use (libcuda.so)", "the GPU's driver is in use (libcuda.so)"),
    ],
)
def test_a_driver_that_is_loaded_may_be_forked_until_it_is_used(
    tmp_path: Path, which: str, loaded: str | None, used: str
) -> None:
    name, begins, text = STAND_INS[which]
    source, library = tmp_path / "driver.c", tmp_path / name
    source.write_text(text)
    build = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(library), str(source)]
    subprocess.run(build, check=True, timeout=HANG_S)
    asked = [sys.executable, "-c", ASKS, str(library), begins]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.splitlines() == [f"{loaded}, {loaded}", f"{used}, {used}"], done.stderr
