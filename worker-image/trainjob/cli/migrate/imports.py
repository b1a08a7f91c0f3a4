"""Import statements of Ray and what they become: a span of the source and its new text. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainjob.compat.ray_names import ANSWERED

_COMPAT = "trainjob.compat"
_OURS = "trainjob"


class Edit(NamedTuple):
    """Characters of the source, and what stands there instead."""

    begin: int
    end: int
    text: str


def edits(tree: ast.Module, source: str) -> list[Edit]:
    """In the order of the source. What is in parentheses behind `import` (comments too) stays as it is."""
    places = _Places(source)
    found: list[Edit] = []
    bound: set[tuple[str, ...]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_ray(node.module):
            found.append(_module_of(node, places, source))
        elif isinstance(node, ast.Import) and any(is_ray(alias.name) for alias in node.names):
            begin, end = places.span(node)
            lines = tuple(dict.fromkeys(_lines(node.names)))
            if node in tree.body and lines in bound and (whole := places.whole_line(node)) is not None:
                found.append(Edit(*whole, ""))  # `import ray` and `import ray.train` have become the same
                continue
            bound.update({lines} if node in tree.body else ())
            joint = f"\n{' ' * node.col_offset}" if places.alone(node) else "; "
            found.append(Edit(begin, end, joint.join(lines)))
    return sorted(found)


def applied(source: str, changes: Iterable[Edit]) -> str:
    """The source with all of them."""
    for edit in sorted(changes, reverse=True):
        source = source[: edit.begin] + edit.text + source[edit.end :]
    return source


def is_ray(module: str | None) -> bool:
    """Whether that is Ray's, and no other package whose name begins alike."""
    return module is not None and (module == "ray" or module.startswith("ray."))


def _module_of(node: ast.ImportFrom, places: _Places, source: str) -> Edit:
    """Of `from MODULE import ...` the module alone. The names of `trainjob` itself are imported from there."""
    assert node.module is not None
    begin, end = places.span(node)
    words = re.compile(r"from\s+" + r"\s*\.\s*".join(map(re.escape, node.module.split("."))))
    match = words.match(source, begin, end)
    # A backslash between the words: the statement is written anew.
    names = ", ".join(_alias(alias.name, alias.asname) for alias in node.names)
    target = _OURS if all(_is_ours(node.module, alias.name) for alias in node.names) else f"{_COMPAT}.{node.module}"
    if match is None:
        return Edit(begin, end, f"from {target} import {names}")
    return Edit(begin, match.end(), f"from {target}")


def _is_ours(module: str, name: str) -> bool:
    answer = ANSWERED.get(module, {}).get(name)
    return answer is not None and answer.ours == f"{_OURS}:{name}"


def _lines(names: Iterable[ast.alias]) -> Iterator[str]:
    """The statements for `import a, ray.x, ray.y as z`, one for each that binds a name."""
    others: list[str] = []
    for alias in names:
        if not is_ray(alias.name):
            others.append(_alias(alias.name, alias.asname))
        elif others:
            yield f"import {', '.join(others)}"
            others = []
        if is_ray(alias.name):
            yield _one(alias)
    if others:
        yield f"import {', '.join(others)}"


def _one(alias: ast.alias) -> str:
    """`import ray.x` binds `ray`, whose modules are found when they are asked for."""
    if alias.asname is None:
        return f"from {_COMPAT} import ray"
    above, _, name = alias.name.rpartition(".")
    return f"from {_COMPAT}{'.' if above else ''}{above} import {_alias(name, alias.asname)}"


def _alias(name: str, renamed: str | None) -> str:
    return name if renamed in (None, name) else f"{name} as {renamed}"


class _Places:
    """From a node's lines and columns (of bytes) to places in the text."""

    def __init__(self, source: str) -> None:
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", source)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))

    def span(self, node: ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def alone(self, node: ast.stmt) -> bool:
        """Whether nothing but a comment shares the statement's lines."""
        begin, end = self.span(node)
        before = self._lines[node.lineno - 1][: begin - self._begins[node.lineno - 1]]
        assert node.end_lineno is not None
        after = self._lines[node.end_lineno - 1][end - self._begins[node.end_lineno - 1] :].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def whole_line(self, node: ast.stmt) -> tuple[int, int] | None:
        """Its line with the line's end; None where something shares it."""
        begin, end = self.span(node)
        first, last = self._begins[node.lineno - 1], self._begins[node.lineno]
        is_one = node.end_lineno == node.lineno
        return (first, last) if is_one and self._lines[node.lineno - 1].strip() == self._text(begin, end) else None

    def _text(self, begin: int, end: int) -> str:
        return "".join(self._lines)[begin:end]

    def _place(self, line: int, column: int) -> int:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._begins[line - 1] + len(text.encode()[:column].decode())
