"""Runs of one name, of two names at once, retention, stop, paths: what a second `tj run` finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from support.faults import Faults
from support.patience import HANG_S
from support.scenario import COUNT, Stage, Told, acknowledged, left_behind, processes_of, wait_until
from trainjob.checkpoint.records import layout
from trainjob.launch.local import backend as local
from trainjob.launch.local.backend import LocalEvent
from trainjob_operator.agents.reports import Report
from trainjob_operator.core.groups.agents import AgentGroup

pytestmark = pytest.mark.slow

LAUNCHER = """
import sys
from support.scenario import Stage
from pathlib import Path
if __name__ == "__main__":
    stage = Stage(Path(sys.argv[1]))
    job = stage.job(*sys.argv[3:], script=Path(sys.argv[2]))
    told = stage.run(job, lambda event: event.kind != "status" and print(event.text, flush=True))
    sys.exit(130 if told.outcome.interrupted else 0 if told.status.holds("Complete") else 10)
"""


def launcher(
    stage: Stage, *arguments: str, script: Path = COUNT, out: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """`run_job` in a process of its own, that can be killed."""
    roots = [
        str(Path(__file__).parents[1]),
        *(entry for entry in sys.path if entry.endswith(("/operator", "/worker-image"))),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "TMPDIR": str(stage.root / "tmp")}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(stage.root), str(script), *arguments],
        env=environment,
        stdout=out,
        stderr=subprocess.PIPE,
    )


def changed(stage: Stage, name: str, first: str) -> Path:
    """count.py with lines before it."""
    path = stage.root / name
    path.write_text(first + COUNT.read_text().replace("from __future__ import annotations\n", ""))
    return path


def wait_for_step(stage: Stage, step: int) -> None:
    wait_until(lambda: any(note.what == "saved" and note.step >= step for note in stage.read_notes()))


def test_a_failed_run_is_continued_by_the_next_one_of_its_name_and_a_completed_one_is_not(stage: Stage) -> None:
    stage.plan(Faults().exits(9, rank=0, at_step=3))
    assert stage.run(stage.job("--steps", "6", max_failures=0)).status.holds("Failed")
    stage.plan(Faults())
    second = stage.run(stage.job("--steps", "6"))
    assert second.status.holds("Complete"), second.text()
    assert second.starts(0) == [(1, 3)]
    assert stage.committed()[-1].startswith("2-1-")
    third = stage.run(stage.job("--steps", "6"))
    assert third.starts(0) == [(1, 0)]


def test_fresh_starts_over(stage: Stage) -> None:
    stage.plan(Faults().exits(9, rank=0, at_step=3))
    stage.run(stage.job("--steps", "5", max_failures=0))
    stage.plan(Faults())
    told = stage.run(stage.job("--steps", "5", resume_from="none"))
    assert told.status.holds("Complete")
    assert told.starts(1) == [(1, 0)]


def test_a_named_checkpoint_is_where_another_job_starts(stage: Stage) -> None:
    stage.run(stage.job("--steps", "4"))
    path = stage.storage / "default" / "job" / "checkpoints" / "1-1-2"
    told = stage.run(stage.job("--steps", "5", name="other", resume_from=str(path)))
    assert told.status.holds("Complete"), told.text()
    assert told.starts(0) == [(1, 2)]


def test_a_killed_launcher_leaves_a_committed_checkpoint_and_nothing_else(stage: Stage) -> None:
    process = launcher(stage, "--steps", "100000", "--pause", "0.02")
    try:
        wait_for_step(stage, 5)
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not left_behind(stage.root))
    newest = acknowledged(stage.read_notes())
    index = int(stage.committed()[-1].split("-")[2])
    # Every rank was told that this step is saved: its checkpoint must be there.
    assert index >= min(newest.values()) + 1
    told = stage.run(stage.job("--steps", str(index + 3)))
    assert told.starts(0) == [(1, index)]


def test_the_next_launcher_of_a_name_waits_for_the_orphans_of_a_killed_one(stage: Stage) -> None:
    process = launcher(stage, "--steps", "100000", "--pause", "0.02")
    try:
        wait_for_step(stage, 3)
    finally:
        process.kill()
        process.communicate()
    orphans = {note.pod for note in stage.read_notes()}
    told = stage.run(stage.job("--steps", "100000", "--pause", "0.02"), Interrupter(stage, 3, orphans))
    assert told.outcome.interrupted
    earlier = acknowledged([note for note in stage.read_notes() if note.pod in orphans])
    assert told.starts(0)[0][1] >= min(earlier.values()) + 1


class Interrupter:
    """A listener that presses Ctrl-C once other pods than those have saved so often."""

    def __init__(self, stage: Stage, notes: int, orphans: Collection[str]) -> None:
        self._stage, self._notes, self._orphans = stage, notes, orphans
        self._pressed = False

    def __call__(self, event: LocalEvent) -> None:
        saved = [n for n in self._stage.read_notes() if n.what == "saved" and n.pod not in self._orphans]
        if not self._pressed and len(saved) >= self._notes:
            self._pressed = True
            raise KeyboardInterrupt


def test_ctrl_c_stops_cleanly_and_stores_what_was_acknowledged(stage: Stage) -> None:
    process = launcher(stage, "--steps", "100000", "--pause", "0.02")
    try:
        wait_for_step(stage, 5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, said.decode()
    wait_until(lambda: not left_behind(stage.root))
    index = int(stage.committed()[-1].split("-")[2])
    assert index >= min(acknowledged(stage.read_notes()).values()) + 1


def test_a_second_ctrl_c_ends_at_once(stage: Stage) -> None:
    # Ranks that do not end: the first Ctrl-C is still being followed when the second one comes.
    script = changed(stage, "stays.py", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
    process = launcher(stage, "--steps", "100000", "--pause", "0.02", script=script, out=subprocess.PIPE)
    assert process.stdout is not None
    try:
        wait_for_step(stage, 2)
        process.send_signal(signal.SIGINT)
        assert any(line.startswith(b"stopping: ") for line in process.stdout)  # it has been heard
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, said.decode()
    assert b"killing the workers" in out
    wait_until(lambda: not left_behind(stage.root))


def test_sigterm_stops_as_ctrl_c_does(stage: Stage) -> None:
    process = launcher(stage, "--steps", "100000", "--pause", "0.02")
    try:
        wait_for_step(stage, 2)
        process.terminate()
        _, said = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130, said.decode()


@pytest.mark.parametrize("late", ["the turn that takes the word", "the word"])
def test_a_job_that_is_stopped_as_it_completes_is_complete(
    stage: Stage, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if late == "the word":
        heard = Report.view
        monkeypatch.setattr(Report, "view", lambda *given: replace(heard(*given), completed=False))
    else:
        monkeypatch.setattr(AgentGroup, "done", lambda *given: None)

    def stop() -> None:
        wait_until((stage.storage / "default/job" / layout.end_key(1)).exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    told = stage.run(stage.job("--steps", "3"))
    assert told.status.holds("Complete") and not told.outcome.interrupted, told.text()
    assert [event.job.status.phase for event in told.events if event.job is not None][-1] == "Complete"


def test_two_jobs_at_once_do_not_disturb_each_other(stage: Stage) -> None:
    told: dict[str, Told] = {}

    def run(name: str) -> None:
        own = Stage(stage.root / name)
        told[name] = own.run(own.job("--steps", "30", "--pause", "0.02", name=name, storage=str(stage.storage)))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    for name in ("first", "second"):
        assert told[name].status.holds("Complete"), told[name].text()
        assert told[name].attempts == 1
        assert len(stage.committed(name)) == 30


def test_the_same_name_twice_at_once_is_refused(stage: Stage) -> None:
    process = launcher(stage, "--steps", "100000", "--pause", "0.02")
    try:
        wait_for_step(stage, 1)
        with pytest.raises(local.LaunchError, match="running already"):
            stage.run(stage.job("--steps", "3"))
    finally:
        try:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_S)
        finally:
            process.kill()


def test_retention_keeps_the_best_and_the_latest(stage: Stage) -> None:
    told = stage.run(stage.job("--steps", "6", "--score", "5,1,9,2,8,0", keep=2))
    assert told.status.holds("Complete"), told.text()
    assert stage.committed() == ["1-1-5", "1-1-6"]
    job = stage.job("--steps", "6", "--score", "5,1,9,2,8,0", keep=2, name="scored")
    checkpoint = job.spec.checkpoint.model_copy(update={"score_attribute": "score"})
    told = stage.run(job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})}))
    kept = stage.committed("scored")
    assert kept[-1] == "1-1-6" and "1-1-3" in kept, told.text()
    assert len(kept) <= 3


def test_spaces_and_unicode_in_every_path(stage: Stage) -> None:
    odd = stage.root / "Größe ∞ 'x' \"y\" $HOME $(A)"
    odd.mkdir()
    script = odd / "trän it.py"
    script.write_text(COUNT.read_text())
    own = Stage(odd)
    own.plan(Faults().kill(rank=1, at_step=2))
    told = own.run(own.job("--steps", "4", script=script))
    assert told.status.holds("Complete"), told.text()
    assert told.attempts == 2
    assert len(own.committed()) == 4


def test_without_storage_the_job_resumes_from_what_is_staged(stage: Stage) -> None:
    stage.plan(Faults().kill(rank=1, at_step=4))
    told = stage.run(stage.job("--steps", "6", storage=None))
    assert told.status.holds("Complete"), told.text()
    assert told.starts(0) == [(1, 0), (2, 4)]
    assert not stage.storage.exists()


def test_a_listener_that_fails_stops_the_job_and_its_error_goes_through(stage: Stage) -> None:
    def listen(event: LocalEvent) -> None:
        if event.kind == "line":
            raise ZeroDivisionError("mine")

    script = changed(stage, "talk.py", "print('hello', flush=True)\n")
    job = stage.job("--steps", "100000", "--pause", "0.05", script=script)
    with pytest.raises(ZeroDivisionError):
        stage.run(job, listen)
    assert processes_of(stage.root) == []
