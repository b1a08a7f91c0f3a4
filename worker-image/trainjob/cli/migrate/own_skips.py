"""Loops that skip batches by themselves, as they do after a restart with a loader that starts at its first batch. Pure.

Found by their form: `if i < start: continue` with a counter of the loop, in whatever condition, and `islice` from some
batch on. A comparison with a plain number is no resume code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def own_skips(tree: ast.Module) -> Iterator[int]:
    """Lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            calls = (one for one in ast.walk(node.iter) if isinstance(one, ast.Call))
            yield from (call.lineno for call in calls if _begins_later(call))
            counters = {*_enumerated(node), *_counted(node)}
            yield from (one.lineno for one in node.body if isinstance(one, ast.If) and _skips(one, counters))


def _begins_later(node: ast.Call) -> bool:
    """`islice(loader, start, ...)`."""
    if len(node.args) < 3:
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return name == "islice" and not isinstance(node.args[1], ast.Constant)


def _enumerated(loop: ast.For) -> Iterator[str]:
    """The counter of `enumerate`, also where that is wrapped: `tqdm(enumerate(loader))`."""
    calls = (node.func for node in ast.walk(loop.iter) if isinstance(node, ast.Call))
    counted = any(isinstance(called, ast.Name) and called.id == "enumerate" for called in calls)
    if counted and isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        yield loop.target.elts[0].id


def _counted(loop: ast.For) -> Iterator[str]:
    """Counters of the loop's own: `seen += 1`."""
    for node in loop.body:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            yield node.target.id


def _skips(node: ast.If, counters: set[str]) -> bool:
    return isinstance(node.body[-1], ast.Continue) and any(_is_below(one, counters) for one in ast.walk(node.test))


def _is_below(node: ast.AST, counters: set[str]) -> bool:
    """`counter < start`, or the other way round."""
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1):
        return False
    low, high = node.left, node.comparators[0]
    if isinstance(node.ops[0], (ast.Gt, ast.GtE)):
        low, high = high, low
    elif not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return False
    return isinstance(low, ast.Name) and low.id in counters and not isinstance(high, ast.Constant)
