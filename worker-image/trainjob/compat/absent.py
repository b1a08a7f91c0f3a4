"""What is said of a name that has no counterpart: used by the modules of `trainjob.compat.ray`."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, Callable, Iterable, Mapping


def absent(theirs: str, name: str, known: Iterable[str], hints: Mapping[str, str]) -> AttributeError:
    """The error for `theirs.name`: a hint if there is one, else the nearest name that is there."""
    if name in hints:
        return AttributeError(f"{theirs}.{name} has no counterpart in TrainJob: {hints[name]}")
    there = sorted(known)
    close = get_close_matches(name, there, n=1, cutoff=0.5)
    nearest = f"the nearest thing is {theirs}.{close[0]}" if close else f"{theirs} has {', '.join(there)}"
    return AttributeError(
        f"{theirs}.{name} has no counterpart in TrainJob; {nearest}. Everything that is there is documented under "
        "`trainjob`."
    )


def names(theirs: str, homes: Mapping[str, str], hints: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: `homes` says in which of our modules a name lives; a name that is its own module
    maps to it.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            if name.startswith("__"):
                raise AttributeError(name)
            raise absent(theirs, name, homes, hints)
        module = import_module(home)
        return module if home.rpartition(".")[2] == name else getattr(module, name)

    return find
