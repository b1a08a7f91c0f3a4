"""Makes the modules of `trainjob.compat.ray` out of `ray_names.py`, and says at import what is not there, and the way
out (`ray_absent.py`).

`from package import name` asks the package for the attribute and then looks for a submodule of that name; an error of
the search is what the user sees, one of the attribute is not. So every module is a package, attributes raise
AttributeError (`hasattr` must work), and this finder raises ImportError with the same sentence.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

from trainjob.compat.ray_absent import way_out
from trainjob.compat.ray_names import ANSWERED

PACKAGE = "trainjob.compat"


class RayFinder(MetaPathFinder):
    """Of everything below `trainjob.compat.ray`, and of nothing else."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Raises ImportError for a name that has no counterpart."""
        if not fullname.startswith(f"{PACKAGE}.ray.") or fullname.rpartition(".")[2].startswith("__"):
            return None
        theirs = fullname[len(PACKAGE) + 1 :]
        if theirs in ANSWERED:
            return ModuleSpec(fullname, _Modules(), is_package=True)
        raise ImportError(absence(theirs), name=fullname)


class _Modules(Loader):
    def exec_module(self, module: ModuleType) -> None:
        theirs = module.__name__[len(PACKAGE) + 1 :]
        module.__doc__ = f"`{theirs}` by TrainJob's own names."
        vars(module).update(__getattr__=attributes(theirs), __all__=sorted(ANSWERED[theirs]))


def install() -> None:
    """Once for a process."""
    if not any(isinstance(one, RayFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, RayFinder())


def attributes(theirs: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: its names, and the modules below it."""

    def find(name: str) -> Any:
        answer = ANSWERED[theirs].get(name)
        if answer is not None:
            home, _, ours = answer.ours.partition(":")
            return getattr(import_module(home), ours)
        if f"{theirs}.{name}" in ANSWERED:
            return import_module(f"{PACKAGE}.{theirs}.{name}")
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(absence(f"{theirs}.{name}"))

    return find


def absence(theirs: str) -> str:
    """One sentence: there is no such thing, and what to do instead, else the nearest name that is there."""
    advice = way_out(theirs)
    if advice is not None:
        return f"{theirs} has no counterpart in TrainJob: {advice}"
    module, _, name = theirs.rpartition(".")
    while not ANSWERED.get(module):
        module = module.rpartition(".")[0]  # at last `ray`
    there = sorted(ANSWERED[module])
    close = get_close_matches(name, there, n=1, cutoff=0.75)
    nearest = f"did you mean {module}.{close[0]}?" if close else f"{module} has {', '.join(there)}."
    return (
        f"{theirs} has no counterpart in TrainJob; {nearest} Everything that is there is documented under `trainjob`."
    )
