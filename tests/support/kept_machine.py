"""`tj` as a user types it in one folder, with a module elsewhere that notes each import of it, and the warm processes
that are there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.patience import HANG_S
from trainjob_api import contract

NOTES = """
import os
with open({path!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
VERSION = {version}
"""


class Machine:
    """One user's."""

    def __init__(self, folder: Path, script: str) -> None:
        self.state, self.notes, self.job = folder / "state", folder / "notes", folder / "job"
        for path in (self.job, folder / "lib"):
            path.mkdir()
        self.notes.touch()
        self.module = folder / "lib" / "noting.py"
        self.write(1)
        (self.job / "train.py").write_text(script)
        paths = [str(folder / "lib"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environ = {**os.environ, "XDG_STATE_HOME": str(self.state), "PYTHONPATH": os.pathsep.join(paths)}

    def write(self, version: int) -> None:
        """The module."""
        self.module.write_text(NOTES.format(path=str(self.notes), version=version))

    @property
    def imports(self) -> int:
        """How often it was imported."""
        return len(self.notes.read_text().splitlines())

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """`tj` with these."""
        return subprocess.Popen(
            [sys.executable, "-m", "trainjob.cli", *words],
            cwd=self.job,
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def tj(self, *words: str, **environ: str) -> tuple[int, str, str]:
        """Its exit code, and what it printed."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=HANG_S)
        return process.returncode, out, err

    def words(self, *arguments: str, more: tuple[str, ...] = ()) -> list[str]:
        """Of a job of two workers whose ranks' parent imports the module."""
        how = ["--prefork", "Always", "--preload", "noting", "--storage", "store", "--plain"]
        return ["run", "train.py", "--workers", "2", *how, *more, "--", *arguments]

    def trains(self) -> bool:
        """Both ranks of a job that waits have begun. (A job is listed as running before it has agents.)"""
        return all((self.job / f"trains{rank}").exists() for rank in range(2))

    def parents(self) -> list[int]:
        """Processes that agents can be started of, by their command line and state folder."""
        mark = f"XDG_STATE_HOME={self.state}".encode()
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_one(pid, mark)]

    def between(self) -> list[int]:
        """Processes between such a one and agents: in its session, and not itself."""
        found = []
        for parent in self.parents():
            for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
                try:
                    if pid != parent and os.getsid(pid) == parent:
                        found.append(pid)
                except OSError:
                    continue
        return found


def _is_one(pid: int, mark: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # Parents in agents, and forks of them, lead sessions too.
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        of_agent = b"trainjob.launch.local.pod" in Path(f"/proc/{parent}/cmdline").read_bytes()
        leads = os.getsid(pid) == pid and not of_agent
        return (
            leads and contract.KEEP.encode() in words and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
    except OSError:
        return False
