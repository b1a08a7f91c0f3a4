"""`tj run` as a process: exit codes, and what stands on its outputs, for each way a job can end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import terminals
from support.patience import HANG_S
from trainjob_api import contract

pytestmark = pytest.mark.slow


class Command:
    """A `tj` that runs; its outputs go to files, so that nothing blocks."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainjob.cli", *words],
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "TRAINJOB_DEBUG": ""},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANG_S
        while True:
            # Asked first: what is there at its end has come.
            over = self.process.poll() is not None or time.monotonic() > deadline
            if condition():
                return
            assert not over, f"it did not come\n{self.out}\n{self.err}"
            time.sleep(0.02)

    def ended(self) -> int:
        try:
            return self.process.wait(HANG_S)
        finally:
            self.process.kill()


@pytest.fixture
def tj(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def start(script: str, *words: str) -> Command:
        (tmp_path / "train.py").write_text(script)
        started.append(Command(tmp_path, "run", "train.py", "--workers", "2", "--storage", "store", *words))
        return started[-1]

    yield start
    for command in started:
        if command.process.poll() is None:
            command.process.send_signal(signal.SIGINT)
            command.ended()


REPORTS = """
import sys, trainjob
rank = trainjob.get_context().get_world_rank()
for step in range(1, 4):
    trainjob.report({"loss": 1 / step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step, total_steps=3)
print("args", sys.argv[1:], "rank", rank)
"""


def test_a_job_that_completes(tj: Callable[..., Command]) -> None:
    run = tj(REPORTS, "--name", "fine", "--", "--epochs", "3")
    assert run.ended() == contract.CLI_OK, run.err
    assert sorted(re.findall(r"^r0(\d) \| args \['--epochs', '3'\] rank (\d)$", run.out, re.MULTILINE)) == [
        ("0", "0"),
        ("1", "1"),
    ]
    assert "attempt 1 started: 2 workers, 2 ranks" in run.err
    assert re.search(r"^fine completed in .* with 1 attempt$", run.err, re.MULTILINE)
    assert "checkpoint 1-1-3: " in run.err


RAISES = """
import trainjob
def deep():
    raise ValueError("bad batch")
trainjob.report({"loss": 1.0})
if trainjob.get_context().get_world_rank() == 1:
    deep()
trainjob.report({"loss": 1.0})
"""


def test_a_job_that_fails_names_its_first_cause(tj: Callable[..., Command]) -> None:
    run = tj(RAISES, "--name", "bad", "--max-failures", "1")
    assert run.ended() == contract.CLI_JOB_FAILED, run.err
    said = "ValueError: bad batch"
    assert run.out.count(said) == 1, "the rank that raised it, and not again in the second attempt"
    assert run.err.count(said) == 2, "the end of each attempt"
    end = run.err[run.err.index("bad failed:") :]
    assert end.startswith("bad failed: rank 1 on bad-1 raised ValueError: bad batch"), "the cause comes first"
    where = r"its traceback is above(, in attempt 1)?"  # a late line of that attempt counts as the next one's
    assert re.search(rf"\[UserCodeError in attempt 2, {where}; 1 other rank ended because of it\]", end), end
    assert "train.py:4." in end
    assert end.splitlines()[-1].endswith(
        "then `tj run train.py --workers 2 --name bad --storage store --max-failures 1` starts again."
    )


FOREVER = """
import itertools, time, trainjob
first = trainjob.get_checkpoint().to_dict()["step"] if trainjob.get_checkpoint() else 0
print("from", first, flush=True)
for step in itertools.count(first + 1):
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
    print("reported", step, flush=True)
    time.sleep(0.02)
"""


def test_ctrl_c_keeps_what_was_reported_and_the_same_command_goes_on(tj: Callable[..., Command]) -> None:
    first = tj(FOREVER, "--name", "long")
    first.until(lambda: "reported 5" in first.out)
    first.process.send_signal(signal.SIGINT)
    assert first.ended() == contract.CLI_INTERRUPTED, first.err
    assert "next: `tj run train.py --workers 2 --name long --storage store` resumes from it" in first.err
    reported = max(int(step) for step in re.findall(r"reported (\d+)", first.out))
    # Its ranks do not end: the first Ctrl-C is still being followed when the second one comes.
    second = tj(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOREVER}", "--name", "long")
    second.until(lambda: "| from " in second.out)
    found = re.search(r"from (\d+)", second.out)
    assert found is not None
    assert int(found[1]) >= reported
    second.process.send_signal(signal.SIGINT)
    second.until(lambda: "stopping" in second.err)
    second.process.send_signal(signal.SIGINT)
    assert second.ended() == contract.CLI_INTERRUPTED


def test_a_job_goes_on_when_the_reader_of_its_output_has_gone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REPORTS)
    read, write = os.pipe()
    os.close(read)
    try:
        words = [sys.executable, "-m", "trainjob.cli", "run", "train.py", "--workers", "2", "--storage", "store"]
        done = subprocess.run(words, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=HANG_S)
    finally:
        os.close(write)
    assert done.returncode == contract.CLI_OK
    assert "completed in" in done.stderr


RUNS = re.compile(r"Running   2/2 workers   2 ranks, attempt 1")


def plain(screen: bytes) -> str:
    """Without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode(errors="replace"))


def test_a_terminal_gets_the_panel_and_ctrl_c_leaves_it_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FOREVER)
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
        words = [
            sys.executable,
            "-m",
            "trainjob.cli",
            "run",
            "train.py",
            "--workers",
            "2",
            "--storage",
            "store",
            "--name",
            "seen",
        ]
        process = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=terminals.environment(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(theirs)
    screen, interrupted = b"", False
    deadline = time.monotonic() + HANG_S
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 1.0)
            try:
                screen += os.read(ours, 65536) if ready else b""
            except OSError:  # the other side is closed: it has ended
                break
            # The word that they run and the ranks' lines come on ways of their own.
            if b"reported 5" in screen and not interrupted and RUNS.search(plain(screen)):
                interrupted = True
                os.write(ours, b"\x03")  # as the key does
        assert process.wait(HANG_S) == contract.CLI_INTERRUPTED
    finally:
        process.kill()
        os.close(ours)
    text = plain(screen)
    assert "╭─ seen " in text and RUNS.search(text)
    assert text.rstrip().endswith("resumes from it")
    assert "^C" not in text, "it would stand behind the panel and push its redrawing a line down"
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")  # the cursor is visible again


@pytest.mark.parametrize(("script", "said"), [("def f(:\n", "SyntaxError"), ("", None)])
def test_a_script_that_cannot_start_is_one_clear_error(
    tj: Callable[..., Command], script: str, said: str | None, tmp_path: Path
) -> None:
    if said is None:
        (tmp_path / "store").write_text("in the way")
        said = "store"
    run = tj(script)
    assert run.ended() == contract.CLI_ERROR
    assert said in run.err
    assert "Traceback" not in run.err
    assert run.err.splitlines()[-1].startswith("next: ")


NO_NUMBERS = """
import os, tempfile, trainjob
from trainjob import Checkpoint
for step in range(1, 6):
    with tempfile.TemporaryDirectory() as folder:
        loss = float("nan") if step > 2 else 0.5
        metrics = {"accuracy": 0.5, "val": {"loss": loss}}
        trainjob.report(metrics, checkpoint=Checkpoint.from_directory(folder), step=step, total_steps=5)
"""


def test_a_loss_that_is_no_number_and_an_empty_checkpoint(tj: Callable[..., Command]) -> None:
    """The first is shown with the step at which it began; the second is a checkpoint like any other."""
    command = tj(NO_NUMBERS, "--name", "nan")
    assert command.ended() == contract.CLI_OK, command.err
    summary = command.err[command.err.index("nan completed") :]
    assert "warning: val.loss became NaN at step 3 (3 values so far)" in summary
    assert "checkpoint 1-1-5" in summary and "val.loss=nan accuracy=0.5" in summary
