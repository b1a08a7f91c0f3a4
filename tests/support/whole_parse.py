"""`ast.parse` that nothing interrupts.

In Python 3.11 a tree is built by code that is not re-entrant: where the garbage collector comes in between, and a
finalizer parses too (asyncio's, which logs the exception of a task that nobody asked for: its traceback marks columns,
for which it parses the line), the outer one fails with "AST constructor recursion depth mismatch". In a process that
runs thousands of tests there is such garbage.
"""

from __future__ import annotations

import ast
import functools
import gc
from typing import Any


def apply() -> None:
    """In this process, for whoever calls `ast.parse` by its module."""
    ast.parse = _whole(ast.parse)


def _whole(parse: Any) -> Any:
    @functools.wraps(parse)
    def parsed(*arguments: Any, **named: Any) -> Any:
        collects = gc.isenabled()
        gc.disable()
        try:
            return parse(*arguments, **named)
        finally:
            if collects:
                gc.enable()

    return parsed
