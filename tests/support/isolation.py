"""Fresh interpreters for tests of what a module may import."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.patience import HANG_S

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "operator", ROOT / "worker-image")

_BLOCKER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} may not be imported here")

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocker())
failed = 0
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed += 1
        print(f"{name}: {type(error).__name__}: {error}")
loaded = BLOCKED & {name.split(".")[0] for name in sys.modules}
if loaded:
    print(f"loaded all the same: {sorted(loaded)}")
sys.exit(bool(failed or loaded))
"""


def modules_of(*packages: str) -> list[str]:
    """Names of all modules in these packages or modules, `__main__` left out; a name that has no file yet gives
    nothing.
    """
    found: list[str] = []
    for package in packages:
        for source in SOURCES:
            base = source.joinpath(*package.split("."))
            paths = (
                sorted(base.rglob("*.py"))
                if base.is_dir()
                else [path for path in [base.with_suffix(".py")] if path.is_file()]
            )
            for path in paths:
                parts = path.relative_to(source).with_suffix("").parts
                if parts[-1] != "__main__":
                    found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def complaints(python: str, blocked: list[str], modules: list[str]) -> str:
    """Import these modules in a fresh interpreter that has `blocked` not at all; returns what went wrong, or
    nothing.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINJOB_"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    command = [python, "-c", _BLOCKER, ",".join(blocked), *modules]
    run = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=HANG_S, check=False)
    return "" if run.returncode == 0 else (run.stdout + run.stderr).strip() or f"exit code {run.returncode}"
