"""A process of a DataLoader that is killed is told with its signal, whatever the rank meets first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import HANG_S

pytestmark = pytest.mark.slow

SCRIPT = """
import faulthandler, json, os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from trainjob.session import failure

WAY = sys.argv[1]
faulthandler.dump_traceback_later(float(sys.argv[2]))  # by then it hangs

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        if WAY == "raises" and at == 4:
            raise ConnectionResetError("of the user's own storage")
        if WAY == "serves" and at >= 4 or WAY == "begins":
            time.sleep(0.5 if at else 0)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(1000)

def main():
    loader = DataLoader(Data(), batch_size=4, num_workers=1, prefetch_factor=2, persistent_workers=WAY == "between")
    batches = iter(loader)
    # torch's own handler would tell of the kill wherever the main thread is; what comes without it is the race.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if WAY == "between":
        for batch in batches:
            pass
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
        batches = iter(loader)
    if WAY == "later":
        next(batches)
        os.kill(batches._workers[0].pid, signal.SIGKILL)
    if WAY == "ours":
        next(batches)
        batches._workers[0].terminate()
        batches._workers[0].join()
    if WAY == "serves":
        batches._workers[0].join()  # its first batch is here, and is not read yet
    for batch in batches:
        pass

try:
    main()
except Exception as error:
    shown = failure.loader_kill(error)
    told = failure.describe(error)
    print(json.dumps([type(error).__name__, told["type"], told["message"], told["communication"], str(shown or "")]))
    print(told["traceback"], file=sys.stderr)
"""


def told(folder: Path, way: str) -> tuple[list[str], str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), way, str(HANG_S / 2)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    except subprocess.TimeoutExpired as hung:
        pytest.fail(f"it hangs: {(hung.stderr or b'').decode()}")
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("way", ["begins", "serves", "later", "between"])
def test_the_signal_is_told_at_whatever_moment_it_came(tmp_path: Path, way: str) -> None:
    (raised, kind, message, communication, shown), traceback = told(tmp_path, way)
    assert kind == "RuntimeError" and not communication
    assert message.startswith("DataLoader worker (pid ") and message.endswith(") is killed by signal: Killed. ")
    assert shown == message
    assert raised in traceback and "in main" in traceback, "what was met stands behind it, at the user's own line"


def test_a_process_that_torch_ended_itself_was_not_killed(tmp_path: Path) -> None:
    (_, _, message, _, shown), _ = told(tmp_path, "ours")
    assert "killed" not in message and not shown


def test_a_connection_of_the_users_own_that_broke_is_told_as_that(tmp_path: Path) -> None:
    (_, kind, message, _, shown), _ = told(tmp_path, "raises")
    assert kind == "ConnectionResetError" and message.startswith("of the user's own storage") and not shown
