"""The text of a script, and of the modules beside it that it imports: what is imported ahead, and whether it may be,
can be read there before anything runs. Of a function its launcher has read that, and tells in the payload's header.

Used by `making`, for `choice`, and by launchers. Nothing is imported to find a module: files below the folder that
Python puts in front of sys.path, as far as their names stand in import statements.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from trainjob_api import command, contract, first_path
from trainjob_api.contract import FunctionCode

FILES = 256
BYTES = 8 << 20
"""Of more than that the rest is not looked at."""
_FILE_BYTES = 1 << 20
_NAMES = rb"\([^)]*\)|[^\n;#]*"
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<source>\.*[\w.]*)[ \t]+import[ \t]*(?P<names>" + _NAMES + rb")"
    rb"|import[ \t]+(?P<modules>[^\n;#]+))",
    re.M,
)
_NAME = re.compile(rb"\w+")
_COMMENT = re.compile(rb"#[^\n]*")


def folder_of(words: Sequence[str], cwd: str) -> str:
    """Where the user's own code lies."""
    parsed = command.parse_python(words)
    return first_path.folder_of(None if parsed is None or parsed.is_module else parsed.target, cwd)


class Script:
    """Of one command; read again when one of its files has changed."""

    def __init__(self, words: Sequence[str], cwd: str) -> None:
        self._words, self._cwd = words, cwd
        self._files: Dict[str, Optional[Tuple[int, int]]] = {}
        self._texts: List[bytes] = []
        self._header: Mapping[str, Any] = {}
        self._header_state: Optional[Tuple[int, int]] = None

    def told(self) -> Optional[FunctionCode]:
        """What a launcher has read of the function that this runs; None: it runs none, or that cannot be read."""
        code = self._payload().get("code")
        if not isinstance(code, dict) or not isinstance(code.get("modules"), list):
            return None
        modules = [name for name in code["modules"] if isinstance(name, str)]
        doubt, serves = code.get("doubt"), code.get("serves")
        sets = bool(code.get("sets_variables", True))
        return {
            "doubt": None if doubt is None else str(doubt),
            "modules": modules,
            "sets_variables": sets,
            "serves": None if serves is None else str(serves),
        }

    def front(self) -> Tuple[str, ...]:
        """Folders that the program puts in front of sys.path before it imports anything."""
        paths = self._payload().get("sys_path")
        return tuple(path for path in paths if isinstance(path, str)) if isinstance(paths, list) else ()

    def _payload(self) -> Mapping[str, Any]:
        """The header, where a function is run."""
        parsed = command.parse_python(self._words)
        if parsed is None or not parsed.is_module or parsed.target != contract.WORKER_MODULE or not parsed.arguments:
            return {}
        path = os.path.join(self._cwd, parsed.arguments[0])
        state = _state(path)
        if state is None or state != self._header_state:
            self._header_state, self._header = state, _first_line(path)
        return self._header

    def texts(self) -> List[bytes]:
        """Of all files as they are now. Empty: it is not there (yet), or is a module that only Python finds."""
        if not self._files or any(_state(path) != state for path, state in self._files.items()):
            self._texts = self._read_all()
        return self._texts

    def _read_all(self) -> List[bytes]:
        root, self._files = folder_of(self._words, self._cwd), {}
        left = self._own(root)
        seen: Set[str] = set(left)
        texts: List[bytes] = []
        size = 0
        while left and len(texts) < FILES and size < BYTES:
            path = left.pop(0)
            text = self._read(path)
            if text is None:
                continue
            texts.append(text)
            size += len(text)
            found = [each for each in _imported(text, os.path.dirname(path), root) if each not in seen]
            left += dict.fromkeys(found)
            seen.update(found)
        return texts

    def _own(self, root: str) -> List[str]:
        """The script; of a module the packages that it lies in, too."""
        parsed = command.parse_python(self._words)
        if parsed is None:
            return []
        if not parsed.is_module:
            return [os.path.join(self._cwd, parsed.target)]
        inside = [*_files(root, f"{parsed.target}.__main__".encode()), *_files(root, parsed.target.encode())]
        module = os.path.join(root, *parsed.target.split("."))
        return list(dict.fromkeys(inside)) if {f"{module}.py", os.path.join(module, "__main__.py")} & {*inside} else []

    def _read(self, path: str) -> Optional[bytes]:
        state = _state(path)
        try:
            with open(path, "rb") as file:
                text = file.read(_FILE_BYTES)
        except OSError:
            return None
        self._files[path] = state
        return text


def _first_line(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _state(path: str) -> Optional[Tuple[int, int]]:
    """By which a file that was written anew is told from what it was."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def packages(texts: Sequence[bytes]) -> Tuple[str, ...]:
    """What their import statements name, up to the first dot; sorted."""
    found: Set[bytes] = set()
    for text in texts:
        for match in _IMPORT.finditer(text):
            for words in [match["source"]] if match["modules"] is None else match["modules"].split(b","):
                found.update(name.partition(b".")[0] for name in words.split()[:1])
    return tuple(sorted(name.decode(errors="replace") for name in found if name))


def _imported(text: bytes, folder: str, root: str) -> Iterator[str]:
    """Files that its import statements may mean."""
    for match in _IMPORT.finditer(text):
        if match["modules"] is not None:
            for words in match["modules"].split(b","):
                yield from _files(root, b"".join(words.split()[:1]))
            continue
        base = match["source"].lstrip(b".")
        dots = len(match["source"]) - len(base)
        start = os.path.join(folder, *[os.pardir] * (dots - 1)) if dots else root
        for words in _COMMENT.sub(b"", match["names"]).strip(b"()").split(b","):
            name = b"".join(words.split()[:1])
            yield from _files(start, b".".join(part for part in (base, name) if part))


def _files(start: str, name: bytes) -> Iterator[str]:
    """Of a dotted name: each package on the way, and what is a module."""
    path = start
    for part in name.split(b"."):
        if not _NAME.fullmatch(part):
            return
        path = os.path.join(path, os.fsdecode(part))
        for file in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.isfile(file):
                yield os.path.normpath(file)
