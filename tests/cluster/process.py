"""Running commands for the cluster tool: each with a time-out, its output in a named log, and an error that says where
to look.

Used by every module of this package; it knows nothing about clusters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_LAST_WORDS = 1500


class ToolError(RuntimeError):
    """A step failed; the message says which, why as far as known, and which log to read."""


def say(text: str) -> None:
    """Progress, on standard error: standard output is for results."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def run(
    words: Sequence[str | Path],
    *,
    timeout_s: float,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | IO[bytes] | None = None,
) -> str:
    """Run a command to its end and return its standard output; `log` keeps all it said.

    Raises ToolError if it is missing, fails, or takes longer than `timeout_s`.
    """
    command = [str(word) for word in words]
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    where = f" (log: {log})" if log else ""
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            command,
            **given,
            env=None if env is None else {**os.environ, **env},
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise ToolError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired as late:
        said = (late.stderr or b"") + (late.stdout or b"")
        _keep(log, command, said)
        raise ToolError(f"{' '.join(command[:4])} took longer than {timeout_s:.0f} s{where}: {_last(said)}") from None
    _keep(log, command, done.stdout + done.stderr)
    if done.returncode != 0:
        raise ToolError(
            f"{' '.join(command[:4])} failed with exit code {done.returncode}{where}: "
            f"{_last(done.stderr or done.stdout)}"
        )
    return done.stdout.decode(errors="replace")


def start(words: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> int:
    """Start a daemon in a session of its own, its output in `log`; returns its process id."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        full = None if env is None else {**os.environ, **env}
        child = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=full,
        )
    return child.pid


def wait_until(
    what: str, condition: Callable[[], bool], *, timeout_s: float, log: Path | None = None, every_s: float = 0.1
) -> None:
    """Poll until `condition()` holds. Raises ToolError naming `what` and the log."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ToolError(
                f"{what}: not within {timeout_s:.0f} s"
                + (f"; the log is {log}, its end: {_last(_tail(log))}" if log else "")
            )
        time.sleep(every_s)


def _keep(log: Path | None, command: list[str], said: bytes) -> None:
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode() + said)


def _tail(log: Path) -> bytes:
    return log.read_bytes()[-_LAST_WORDS:] if log.exists() else b""


def _last(said: bytes) -> str:
    return said.decode(errors="replace")[-_LAST_WORDS:].strip()
