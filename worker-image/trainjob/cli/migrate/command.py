"""`tj migrate`: read files, tell what becomes of them, and show or write it."""

from __future__ import annotations

import argparse
import difflib
import os
import tokenize
from io import BytesIO
from pathlib import Path

from trainjob.cli.errors import CommandError
from trainjob.cli.migrate import manifest, script
from trainjob.screen import wording
from trainjob_api.contract import CLI_ERROR, CLI_OK

_MANIFESTS = (".yaml", ".yml")


def migrate(args: argparse.Namespace) -> int:
    """One file after the other. The exit code is that of an error where a line does not run as it is."""
    codes = [_manifest(path) if path.endswith(_MANIFESTS) else _script(path, args) for path in args.files]
    return max(codes, default=CLI_OK)


def _script(path: str, args: argparse.Namespace) -> int:
    data = _bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        before = data.decode(encoding)
        found = script.migrate(before)
    except (SyntaxError, UnicodeDecodeError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise CommandError(
            f"{path}{where} is not Python: {error.msg if isinstance(error, SyntaxError) else error}",
            next_step="give a Python script, or a manifest whose name ends in .yaml",
        ) from None
    if args.diff:
        old, new = before.splitlines(keepends=True), found.text.splitlines(keepends=True)
        print("".join(difflib.unified_diff(old, new, fromfile=path, tofile=path)), end="")
    for note in found.notes:
        print(f"{path}:{note.line}: {'does not run: ' if note.missing else ''}{note.text}")
    if args.write and found.text != before:
        _replace(path, found.text.encode(encoding))
    if not found.statements:
        print(f"{path}: it imports nothing of Ray")
        return CLI_OK
    missing = sum(note.missing for note in found.notes)
    said = [f"{wording.count(found.statements, 'import')} {'rewritten' if args.write else 'to rewrite'}"]
    said += [wording.count(len(found.notes), "note") + (f", {missing} of what does not run" if missing else "")]
    print(f"{path}: {', '.join(said)}{'' if args.write else '; --write rewrites it'}")
    return CLI_ERROR if missing else CLI_OK


def _manifest(path: str) -> int:
    """The new manifest on standard output, what one should know as comments before it."""
    try:
        text = _bytes(path).decode()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text", next_step="give a YAML manifest") from None
    print(manifest.migrate(path, text), end="")
    return CLI_OK


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {error.strerror}", next_step="name scripts (.py) and manifests (.yaml)"
        ) from None


def _replace(path: str, data: bytes) -> None:
    """Whole or not at all; it keeps its rights."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "xb") as file:
            os.fchmod(file.fileno(), os.stat(path).st_mode & 0o7777)
            file.write(data)
        os.replace(part, os.path.realpath(path))
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise CommandError(
            f"{path} cannot be written: {error.strerror}", next_step="--diff shows what would change"
        ) from None
