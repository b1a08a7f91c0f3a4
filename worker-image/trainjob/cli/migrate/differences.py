"""What to look at in a script that was written for Ray, by line: names that are missing or differ, arguments, and code
that would do twice what the library does. Pure; what is said of names stands in `trainjob.compat`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from trainjob.cli.migrate.imports import is_ray
from trainjob.cli.migrate.own_skips import own_skips
from trainjob.compat.finder import absence
from trainjob.compat.ray_absent import ABSENT
from trainjob.compat.ray_names import ANSWERED, Answer
from trainjob.launch.handover.ray_arguments import WAYS_OUT

_SKIPS = (
    "prepare_data_loader resumes inside an epoch by itself: take this skip out, or give prepare_data_loader(..., "
    "resume=False) and keep it"
)
_ARGUMENTS = {
    ("TorchTrainer", "datasets"): "there is no Ray Data: make the data set in the training function",
    ("TorchTrainer", "metadata"): "it has no effect: put it into the checkpoint",
    ("report", "checkpoint_dir_name"): "it becomes a link to the checkpoint's folder, on a path; a bucket has none",
}


class Note(NamedTuple):
    """Of one line."""

    line: int
    text: str
    missing: bool = False
    """The line does not run as it is."""


def differences(tree: ast.Module) -> list[Note]:
    """Each once, in the order of the lines."""
    names = dict(_bound(tree))
    words = frozenset(_words(tree))
    of_names = [*_of_imports(tree, words), *_of_uses(tree, names, words)]
    skips = own_skips(tree) if "prepare_data_loader" in words else ()
    found = [*of_names, *_of_arguments(tree, names), *(Note(line, _SKIPS) for line in skips)]
    return sorted(dict.fromkeys(found))


def _words(tree: ast.Module) -> Iterator[str]:
    """Names that are imported, attributes and keywords: what a difference may be met by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name


def _bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name in the script -> what of Ray it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_ray(alias.name):
                    yield (alias.asname, alias.name) if alias.asname else ("ray", "ray")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and is_ray(node.module):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _of_imports(tree: ast.Module, words: frozenset[str]) -> Iterator[Note]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and is_ray(node.module):
            for alias in node.names:
                if alias.name != "*":
                    yield from _of_name(alias.lineno, f"{node.module}.{alias.name}", words)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_ray(alias.name):
                    yield from _of_name(alias.lineno, alias.name, words)


def _of_uses(tree: ast.Module, names: dict[str, str], words: frozenset[str]) -> Iterator[Note]:
    """`ray.train.report`, spelled out: of a chain of attributes as much as is known, and no further."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        chain = _chain(node, names)
        if chain is not None and chain.rpartition(".")[0] in ANSWERED:
            yield from _of_name(node.lineno, chain, words)


def _of_name(line: int, theirs: str, words: frozenset[str]) -> Iterator[Note]:
    answer = _answer(theirs)
    if answer is not None:
        if answer.differs and (not answer.met_by or not words.isdisjoint(answer.met_by)):
            yield Note(line, f"{theirs}: {answer.differs.replace('`', '')}")
    elif theirs not in ANSWERED:
        yield Note(line, absence(theirs), missing=True)
    elif not ANSWERED[theirs] and theirs in ABSENT:
        yield Note(line, f"{theirs}: of it only what is below it is here; {ABSENT[theirs]}")


def _answer(theirs: str) -> Answer | None:
    module, _, name = theirs.rpartition(".")
    return ANSWERED.get(module, {}).get(name)


def _of_arguments(tree: ast.Module, names: dict[str, str]) -> Iterator[Note]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        theirs = _chain(node.func, names)
        answer = None if theirs is None else _answer(theirs)
        if answer is None:
            continue
        called = answer.ours.partition(":")[2]
        for given in node.keywords:
            name = given.arg or ""
            if name in WAYS_OUT.get(called, {}):
                yield Note(given.value.lineno, f"{called}({name}=): {WAYS_OUT[called][name]}", missing=True)
            elif (called, name) in _ARGUMENTS:
                stops = name == "datasets"
                yield Note(given.value.lineno, f"{called}({name}=): {_ARGUMENTS[called, name]}", missing=stops)


def _chain(node: ast.expr, names: dict[str, str]) -> str | None:
    """The dotted name of Ray's that an expression is; None: it is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        above = _chain(node.value, names)
        return None if above is None else f"{above}.{node.attr}"
    return None
