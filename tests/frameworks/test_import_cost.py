"""Who imports an integration pays for the framework and for our own few modules: nothing else comes along."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

FRAMEWORKS = {
    "trainjob.lightning": "lightning.pytorch",
    "trainjob.huggingface": "transformers.trainer",
    "trainjob.keras": "keras",
    "trainjob.tensorflow": "tensorflow",
    "trainjob.jax": "jax",
    "trainjob.orbax": "orbax.checkpoint",
    "trainjob.xgboost": "xgboost",
    "trainjob.lightgbm": "lightgbm",
    "trainjob.deepspeed": "deepspeed.ops:__compatible_ops__",  # which it finds out when it is asked, or at its start
}
OURS_LIMIT = 30
"""Modules of our own that an integration may need beside those of any loop; Lightning's needs trainjob.torch, with 24."""

SCRIPT = """
import importlib, json, sys
(framework, _, asked), integration = sys.argv[1].partition(":"), sys.argv[2]
import trainjob
trainjob.report  # what any loop uses
module = importlib.import_module(framework)
if asked:
    getattr(module, asked)
before = set(sys.modules)
importlib.import_module(integration)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("integration", FRAMEWORKS)
def test_an_integration_imports_nothing_beside_its_framework_and_us(integration: str) -> None:
    framework = FRAMEWORKS[integration]
    if importlib.util.find_spec(framework.partition(".")[0]) is None:
        pytest.skip(f"{framework} is not installed here: make test-frameworks")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, framework, integration], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    more = json.loads(done.stdout.splitlines()[-1])
    ours = [name for name in more if name.partition(".")[0] in ("trainjob", "trainjob_api")]
    known = {"trainjob", "trainjob_api", framework.partition(".")[0], *sys.stdlib_module_names}
    foreign = [name for name in more if name.partition(".")[0] not in known]
    assert integration in ours and len(ours) <= OURS_LIMIT, ours
    assert foreign == [], foreign
