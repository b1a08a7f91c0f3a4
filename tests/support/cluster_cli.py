"""A user with `tj` before a real API server: jobs that tests create and whose status they write, as the operator
would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from cluster.apiserver import ApiServer
from support.patience import HANG_S
from support.trainjobs import document
from trainjob.cli.main import main

Manifest = dict[str, Any]


@dataclass
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class User:
    """Runs commands in one namespace of the cluster that KUBECONFIG names."""

    def __init__(self, server: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self.namespace, self._capsys = server, namespace, capsys

    def tj(self, *words: str, script_args: tuple[str, ...] = ()) -> Said:
        """Run a command to its end."""
        code = main(
            [*words, *(() if "-n" in words else ("-n", self.namespace)), *(("--", *script_args) if script_args else ())]
        )
        shown = self._capsys.readouterr()
        return Said(code, shown.out, shown.err)

    def meanwhile(self, *steps: Callable[[], object]) -> Meanwhile:
        """Do these in the background while a command runs; their errors come out at the end."""
        return Meanwhile(steps)

    # --- As the API server has it -------------------------------------------------------------------------------------

    def path(self, name: str = "") -> str:
        return f"/apis/trainjob.dev/v1alpha1/namespaces/{self.namespace}/trainjobs" + (f"/{name}" if name else "")

    def create(self, changes: dict[str, Any] | None = None) -> Manifest:
        return self.server.request(
            "POST", self.path(), document({"metadata.namespace": self.namespace, **(changes or {})})
        )

    def get(self, name: str = "digits") -> Manifest:
        return self.server.request("GET", self.path(name))

    def status(self, name: str = "digits", **fields: Any) -> None:
        """Write fields of the status, as the operator does."""
        self.server.request("PATCH", f"{self.path(name)}/status", {"status": fields})

    def core(self, kind: str) -> list[Manifest]:
        found: list[Manifest] = self.server.request("GET", f"/api/v1/namespaces/{self.namespace}/{kind}")["items"]
        return found


class Meanwhile:
    """A thread that does the steps; `with` joins it and raises what it raised."""

    def __init__(self, steps: tuple[Callable[[], object], ...]) -> None:
        self._steps, self._error = steps, None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(HANG_S)
        if self._error is not None:
            raise self._error
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            for step in self._steps:
                step()
        except BaseException as error:
            self._error = error


def until(condition: Callable[[], object], within_s: float = HANG_S) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def condition(type_: str, status: str, reason: str, message: str = "") -> Manifest:
    """One of status.conditions."""
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}


def attempt(number: int, members: str, workers: int, **more: Any) -> Manifest:
    """status.attempt, running."""
    return {
        "number": number,
        "state": "Running",
        "startedAt": now(),
        "members": members,
        "workers": workers,
        "worldSize": workers,
        "cause": "Started",
        **more,
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
