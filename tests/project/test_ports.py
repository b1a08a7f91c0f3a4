"""Ports for servers of tests: there are some, whoever else has tested on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import ports

NOBODY = 65534


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that all users may write to, in place of the machine's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    monkeypatch.setattr(ports, "_TEMPORARY", folder)
    yield folder
    shutil.rmtree(folder)


def test_a_user_gets_a_port_beside_what_another_has_left(temporary: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it tests as two users")
    assert ports.free_port()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(NOBODY)
            code = 0 if ports.free_port() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert any(temporary.iterdir())
