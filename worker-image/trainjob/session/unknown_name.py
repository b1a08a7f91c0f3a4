"""A name that a module of ours does not have: the error that says which one was meant. Standard library only."""

from __future__ import annotations

import opcode
import sys
from difflib import get_close_matches
from typing import Callable, Iterable, NoReturn

_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]


def error(module: str, name: str, known: Iterable[str]) -> Exception:
    """To be raised by the module's `__getattr__`, which calls this."""
    close = get_close_matches(name, sorted(known), n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    # `from m import x` drops the words of an AttributeError, and Python 3.12 is the first that guesses by itself.
    # hasattr() and getattr() need an AttributeError: only the statement gets the other.
    if close and _is_import(2):
        return ImportError(f"cannot import name {name!r} from {module!r}{meant}", name=module)
    missing = AttributeError(f"module {module!r} has no attribute {name!r}{meant}")
    # An error that has its name is left as it is by the interpreter; else it would put the module in, and guess again.
    missing.name = name
    return missing


def getter(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """A `__getattr__` for a module that has nothing but these."""

    def __getattr__(name: str) -> NoReturn:
        raise error(module, name, known)

    return __getattr__


def _is_import(above: int) -> bool:
    """Whether the frame so far above the caller's is at `from ... import`."""
    try:
        frame = sys._getframe(above + 1)
        return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
    except (ValueError, IndexError, AttributeError):
        return False
