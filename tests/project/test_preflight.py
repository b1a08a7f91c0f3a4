"""The one case in which CI may go without the end-to-end suite is decided by rights alone, and has an exit code of
its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import engine, preflight
from support.isolation import ROOT
from support.patience import HANG_S

NOBODY = 65534


def test_without_root_no_engine_of_our_own_is_possible() -> None:
    assert _said_by_a_fork_as(NOBODY) == "no Docker engine answers, and an own one needs root"


def test_without_the_right_to_make_namespaces_it_says_so_and_ends_with_its_code(tmp_path: Path) -> None:
    setpriv, unshare, mount = (shutil.which(name) for name in ("setpriv", "unshare", "mount"))
    if os.geteuid() != 0 or not (setpriv and unshare and mount) or preflight.missing_right() is not None:
        pytest.skip("needs root, util-linux and a machine on which a cluster can be made")
    # With these two commands alone no Docker engine is found: the rights decide.
    for program in (unshare, mount):
        (tmp_path / Path(program).name).symlink_to(program)
    env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {
        "PATH": str(tmp_path),
        "PYTHONPATH": "tests",
    }
    words = [
        setpriv,
        "--bounding-set",
        "-sys_admin",
        "--inh-caps",
        "-sys_admin",
        sys.executable,
        "-m",
        "cluster",
        "check",
    ]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == preflight.EXIT_CANNOT, done.stdout + done.stderr
    assert (
        "no cluster can be made on this machine: this machine gives no right to make network and mount namespaces"
        in done.stderr
    )


def test_where_an_engine_answers_or_all_rights_are_there_nothing_is_in_the_way() -> None:
    if engine.find() is None and preflight.missing_right() is not None:
        pytest.skip(f"not on this machine: {preflight.missing_right()}")
    assert preflight.obstacle() is None


def test_ci_knows_that_code_and_every_other_one_is_red() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"\ncannot={preflight.EXIT_CANNOT}\n" in script
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=False, timeout=HANG_S).returncode == 0


def _said_by_a_fork_as(user: int) -> str | None:
    """`missing_right()` of this very code under another user's id, where this one may take it."""
    if os.geteuid() != 0:
        return preflight.missing_right()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(user)
        os.write(writing, (preflight.missing_right() or "").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text
