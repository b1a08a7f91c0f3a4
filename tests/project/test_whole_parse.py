"""Tests parse code whatever garbage others have left."""

from __future__ import annotations

import ast
import gc


class Left:
    """Garbage that parses as it goes, as what logs an exception does."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        compile("(" * 20 + "1" + ")" * 20, "left", "eval", ast.PyCF_ONLY_AST)


def test_what_is_parsed_is_whole_beside_garbage_that_parses() -> None:
    text = "\n".join(f"def f{number}(a, b): return a + b * (1, 2, 3)[0]" for number in range(200))
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            for _ in range(3):
                Left()
            assert len(ast.parse(text).body) == 200
    finally:
        gc.set_threshold(*before)
    assert gc.isenabled()
