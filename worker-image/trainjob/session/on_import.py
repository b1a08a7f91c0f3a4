"""Something to be done to a module once it is imported, by whomever, with nothing imported for it.

Called by the boot's modules that change a function of torch.
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Callable, Optional


def on_import(name: str, act: Callable[[types.ModuleType], None]) -> None:
    """`act(module)`: right after the module's body has run, before who imported it goes on; now if it has run."""
    module = sys.modules.get(name)
    if module is not None:
        act(module)
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Finds what Python's own finder finds."""

    def __init__(self, name: str, act: Callable[[types.ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Any = None, target: Optional[types.ModuleType] = None) -> Optional[ModuleSpec]:
        """As importlib asks it. None: another finder's affair."""
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def execute(module: types.ModuleType) -> None:
                run(module)
                self._act(module)

            # On the one loader, not by another class: tools look at a loader's type.
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec
