"""The storage child as a real process: protocol, order, signals, end of stdin."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from support.checkpoint import Job, note_of, read_tree, write_tree
from support.os_faults import LOG, STORAGE_CHILD, OsFaults
from support.patience import HANG_S
from trainjob.checkpoint.records.manifest import ReleaseNote
from trainjob.checkpoint.storage_child import child as child_module
from trainjob.checkpoint.stores.store import Store

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "trainjob.checkpoint.storage_child.child"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'worker-image'}:{ROOT / 'operator'}"}


class Child:
    """The process, with what it has said so far."""

    def __init__(self, storage: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), bufsize=0)
        self.storage = storage
        self.said: list[dict[str, Any]] = []
        self._number = 0
        self._rest = b""

    def ask(self, op: str, **fields: Any) -> int:
        self._number += 1
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"id": self._number, "op": op, "storage": self.storage, **fields}).encode() + b"\n"
        )
        return self._number

    def reply(self, number: int | None) -> dict[str, Any]:
        """The final reply to a request; others that come before it are kept."""
        deadline = time.monotonic() + HANG_S
        while True:
            for message in self.said:
                if message["id"] == number and "ok" in message:
                    return message
            assert self._listen(deadline - time.monotonic()), f"no reply to {number}; said {self.said}"

    def _listen(self, timeout_s: float) -> bool:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(timeout_s, 0)):
                return False
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.said += [json.loads(line) for line in lines]
        return bool(data)

    def do(self, op: str, **fields: Any) -> dict[str, Any]:
        found = self.reply(self.ask(op, **fields))
        assert found["ok"], found
        return found

    def close(self) -> int:
        """End of stdin; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=HANG_S)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def child(job: Job) -> Iterator[Child]:
    yield from children(str(job.folder))


@pytest.fixture
def any_child(any_store: Store) -> Iterator[Child]:
    yield from children(any_store.uri())


def children(storage: str) -> Iterator[Child]:
    made = Child(storage)
    yield made
    made.process.kill()
    made.process.wait()
    for pipe in (made.process.stdin, made.process.stdout, made.process.stderr):
        assert pipe is not None
        pipe.close()


def share_fields(job: Job, note: ReleaseNote, rank: int, staged: Path) -> dict[str, Any]:
    return {"checkpoint": str(note.id), "rank": rank, "staged": str(staged), **note.share_of(rank)}


def blocked_share(job: Job, child: Child, tmp_path: Path, id_: str) -> tuple[int, BinaryIO, ReleaseNote]:
    """A share that is under way, and stands still until the test closes the pipe that it reads: no timing needed."""
    folder = write_tree(tmp_path / f"blocked {id_}", {})
    folder.mkdir()
    os.mkfifo(folder / "m")
    note = note_of(id_, {"m": (0, 0)})
    number = child.ask("share", **share_fields(job, note, 0, folder))
    return number, when_read(folder / "m"), note


def when_read(pipe: Path) -> BinaryIO:
    """The end to write to, once somebody has opened the other one."""
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            return os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "wb")
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def test_a_checkpoint_from_settle_to_restore(any_store: Store, any_child: Child, tmp_path: Path) -> None:
    job, child = Job(tmp_path, any_store), any_child
    uri, brought = any_store.uri("checkpoints/1-1-1"), tmp_path / "brought"
    child.do("probe")
    assert child.do("settle", job_uid="a", resume_from="auto", candidates=[])["run"] == 1
    note = job.note("1-1-1", metrics={"acc": 0.5})
    assert child.do("share", **share_fields(job, note, 0, job.stage("1-1-1")))["bytes"] == 250
    assert child.do("commit", note=note.to_json(), nonce="n") == {
        "id": 4,
        "ok": True,
        "committed": False,
        "missing": [1],
    }
    child.do("fetch", note=note.to_json(), paths=["model.pt"], into=str(tmp_path / "some"))
    assert read_tree(tmp_path / "some") == {"model.pt": job.contents("1-1-1")["model.pt"]}
    child.do("share", **share_fields(job, note, 1, job.stage("1-1-1")))
    done = child.do("commit", note=note.to_json(), nonce="n", ranks=[0, 1])
    assert (done["committed"], done["checkpoint"], done["uri"], done["bytes"]) == (True, "1-1-1", uri, 359)
    kept = child.do("retain", run=1, keep=1, score_attribute="acc", score_order="max", protect=["1-1-1"])
    assert kept["count"] == 1 and kept["best"] == kept["latest"]
    assert kept["latest"] == {
        "id": "1-1-1",
        "step": 10,
        "uri": uri,
        "time": 1.5e9,
        "bytes": 359,
        "metrics": {"acc": 0.5},
    }
    child.do("history", run=1, attempt=1, segment=0, text='{"kind": "report", "position": 1}\n')
    held = [f.path for f in note.files]
    assert ReleaseNote.from_json(child.do("manifest", checkpoint="1-1-1")["note"]) == note
    found = child.do("verify", checkpoint="1-1-1", paths=held, into=str(brought))
    assert found["path"] == (any_store.local("checkpoints/1-1-1") or str(brought))
    assert read_tree(Path(found["path"])) == job.contents("1-1-1")
    chosen = child.do("settle", job_uid="a", resume_from="auto", candidates=[{"note": note.to_json(), "held": held}])[
        "checkpoint"
    ]
    assert (chosen["id"], chosen["source"], chosen["stored"]) == ("1-1-1", "staged", [])
    child.do("mark_damaged", checkpoint="1-1-1", why="test")
    assert child.do("settle", job_uid="a", resume_from="auto", candidates=[])["checkpoint"] is None
    child.do("end", run=1, summary={"position": 1})
    assert child.do("settle", job_uid="a", resume_from="auto", candidates=[])["completed"]
    assert child.close() == 0


def test_damage_is_an_answer_and_leaves_the_mark(job: Job, child: Child) -> None:
    job.save("1-1-1")
    (job.path("1-1-1") / "model.pt").write_bytes(b"!" * 250)
    error = child.reply(child.ask("verify", checkpoint="1-1-1", paths=["model.pt"], into=""))["error"]
    assert error["kind"] == "damaged" and "model.pt is damaged: expected crc32" in error["message"]
    assert (job.path("1-1-1") / ".trainjob/damaged.json").exists()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"op": "nope"}, "unknown operation 'nope'; there are probe, settle"),
        ({"op": "share"}, "malformed request share: KeyError: 'checkpoint'"),
        ({"op": "share", "checkpoint": "x"}, "'x' is no checkpoint identity"),
        ({"op": "commit", "note": {}, "nonce": ""}, "field 'files' is missing"),
        ({"op": "probe", "storage": "gs://b/x"}, "gs:// is not supported"),
        ({"op": "settle", "candidates": 3}, "malformed request settle"),
        ({"op": "history", "run": 1, "attempt": 1, "segment": 0, "text": 3}, "malformed request history"),
    ],
)
def test_a_malformed_request_is_answered(child: Child, fields: dict[str, Any], expected: str) -> None:
    error = child.reply(child.ask(**fields))["error"]
    assert error["kind"] == "invalid" and expected in error["message"]
    assert child.process.stdin is not None
    child.process.stdin.write(b"no json\n[]\n")
    assert child.reply(None)["error"]["message"].startswith("expected one JSON object with an id a line")
    child.do("probe")


def test_a_share_that_stands_still_holds_up_nothing_else(job: Job, child: Child, tmp_path: Path) -> None:
    job.save("1-1-1")
    number, pipe, note = blocked_share(job, child, tmp_path, "1-1-2")
    child.do("probe")
    child.do("verify", checkpoint="1-1-1", paths=["model.pt"], into="")
    child.do("retain", run=1, keep=1, protect=["1-1-2"])
    assert child.do("commit", note=note.to_json(), nonce="n")["missing"] == [0]
    assert not [m for m in child.said if m["id"] == number and "ok" in m]
    pipe.close()
    assert child.reply(number)["ok"]
    assert child.do("commit", note=note.to_json(), nonce="n")["committed"]


def test_progress_rises_while_bytes_move(job: Job, child: Child, tmp_path: Path) -> None:
    size = 80 << 20
    folder = write_tree(tmp_path / "big", {"m": b""})
    os.truncate(folder / "m", size)
    note = note_of("1-1-1", {"m": (size, 0)})
    number = child.ask("share", **share_fields(job, note, 0, folder))
    assert child.reply(number)["bytes"] == size
    progress = [m["progress"] for m in child.said if m["id"] == number and "progress" in m]
    assert progress and progress == sorted(progress) and progress[0] > 0 and progress[-1] <= size


def test_at_the_end_of_stdin_the_operation_in_flight_is_finished(job: Job, child: Child, tmp_path: Path) -> None:
    _, pipe, note = blocked_share(job, child, tmp_path, "1-1-1")
    waiting = child.ask("share", **share_fields(job, job.note("1-1-2"), 0, job.stage("1-1-2")))
    child.do("probe")
    child.process.send_signal(signal.SIGTERM)
    child.process.send_signal(signal.SIGINT)
    child.do("probe")
    child.ask("end", run=1, summary={})
    assert child.process.stdin is not None
    child.process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.wait(timeout=0.2)
    pipe.close()
    assert child.process.wait(timeout=HANG_S) == 0
    assert (job.path(str(note.id)) / ".trainjob/rank-0.json").exists()
    assert (job.folder / "runs/1.end.json").exists(), "small operations that wait are done"
    assert not job.path("1-1-2").exists(), f"share {waiting} waited and is dropped"


def test_an_agent_that_is_gone_does_not_stop_what_is_in_flight(job: Job, child: Child, tmp_path: Path) -> None:
    _, pipe, note = blocked_share(job, child, tmp_path, "1-1-1")
    child.do("probe")
    assert child.process.stdout is not None and child.process.stdin is not None
    child.process.stdout.close()
    child.process.stdin.close()
    pipe.close()
    assert child.process.wait(timeout=HANG_S) == 0
    assert (job.path(str(note.id)) / ".trainjob/rank-0.json").exists()


def test_an_agent_killed_with_replies_unread_leaves_no_child(job: Job) -> None:
    """As the agent has it, stdin is one end of a socket pair: closed with bytes unread in it, the other end reads
    `reset`, not the end.
    """
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, env=environment())
    theirs.close()
    ours.sendall(b'{"id": 1, "op": "nonsense"}\n')
    assert select.select([ours], [], [], HANG_S)[0], "the child does not answer"
    ours.close()
    try:
        assert process.wait(HANG_S) == 0
    finally:
        process.kill()


def test_it_starts_fast_and_small(job: Job) -> None:
    """By CPU time beyond an interpreter that does nothing, as machines differ; the best of several, as they are busy."""

    def best(*arguments: str) -> tuple[float, int]:
        times, peak = [], 0
        for _ in range(5):
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'worker-image'}:{ROOT / 'operator'}"},
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            times.append(usage.ru_utime + usage.ru_stime)
            peak = usage.ru_maxrss
            assert process.returncode == 0
        return min(times), peak

    bare, bare_kb = best("-c", "pass")
    mine, mine_kb = best("-m", "trainjob.checkpoint.storage_child.child")
    assert mine - bare < 0.25, "measured: 0.035 s on an idle machine"
    assert mine_kb - bare_kb < 15_000, "measured: 5 MB"


def test_a_child_that_cannot_start_its_threads_ends(tmp_path: Path) -> None:
    """At a limit of processes. The agent starts another one; of one that stayed and read nothing it would wait."""
    (tmp_path / "pod-0").mkdir()
    plan = OsFaults("thread", "EAGAIN", "storage_child/child.py", after=2, module=STORAGE_CHILD)
    child = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, cwd=tmp_path / "pod-0", env={**os.environ, **plan.environment()}
    )
    try:
        assert child.wait(HANG_S) == 1
        assert (tmp_path / LOG).read_text()
    finally:
        child.kill()
        child.wait()


def test_an_answer_that_cannot_be_written_is_a_fault_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller would wait for it for ever, and the others in that lane too."""
    replies, asked = io.BytesIO(), [b'{"id": %d, "op": "ended", "storage": "s"}\n' % n for n in (1, 2)]
    monkeypatch.setattr(child_module, "perform", lambda request, moved: {"what": object()})
    child_module.Child(io.BytesIO(b"".join(asked)), replies).run()
    told = [json.loads(line) for line in replies.getvalue().splitlines()]
    assert sorted(one["id"] for one in told) == [1, 2]
    assert {one["error"]["kind"] for one in told} == {"internal"}
