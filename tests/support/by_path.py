"""Modules that belong to no package: the generators beside the pages and the chart."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_at(path: Path) -> ModuleType:
    """The module in that file, run anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
