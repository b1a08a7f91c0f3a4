"""The agent's storage child: everything that touches a job's storage happens in this process, so that a storage that
hangs holds up neither the agent nor its ranks. Started by the agent as `python -m
trainjob.checkpoint.storage_child.child`.

Protocol: one JSON object a line. Requests on stdin, replies on stdout in the order in which operations finish, matched
by `id`.

    -> {"id": 7, "op": "share", "storage": "/mnt/jobs/default/digits", ...} <- {"id": 7, "progress": 1048576}
    bytes moved so far; share and verify, at most 5 a second, only when it rose <- {"id": 7, "ok": true, ...} <- {"id":
    7, "ok": false, "error": {"kind": "full", "message": "..."}}

`id` is the number of the request. Checkpoint identities travel as text ("1-2-14") under `checkpoint`. `storage` is the
folder (or URI) of the JOB. Error kinds are the constants of `errors.py`: unreadable, readonly, full, damaged, lost,
conflict, invalid, retired, internal. Every operation may be sent again after a crash or a lost reply: it finishes what
was begun and answers the same.

    probe        {}                          -> {}
        Makes the job's folder and tries what a commit needs: write, fsync, link, read, delete.
    settle       {job_uid, resume_from, attempt, candidates: [{"note": ReleaseNote, "held": [path, ...]}]}
                 -> {run, completed, checkpoint, warnings: [text], why: text, claim: {run, nonce} | null}
        Finds this job's run or claims the next one, and picks what the attempt resumes from. `held`: paths that some
        member holds whole; several entries for one id are united. `why` is one sentence for an event. `checkpoint` is
        null (start from nothing) or {"id", "source": "staged" | "stored", "uri", "note": ReleaseNote, "stored": [path,
        ...]}: source "staged": members hold every file except those listed in `stored`, which are to be read below
        `uri`; `uri` is where it is (or will be) on storage. source "stored": committed; everything is read from the
        folder `uri`, after `verify`. `uri` may lie in another job's folder (resumeFrom: a path); `id` is then that
        checkpoint's own id. `claim`, of paths alone: what `see` is asked for on other hosts.
    ended        {job_uid}                   -> {run: n | null, completed}
        Whether the run that this job has claimed is complete. Writes nothing.
    see          {claim}                     -> {seen, where: text}
        Whether this machine finds that claim in the job's folder; if not, what lies under the path here, in words.
    share        {checkpoint, rank, staged: folder, files: [[path, size], ...], duplicates: [[path, size], ...],
                  stamps: [[path, *Stamp], ...]}   -> {bytes}
        Copies a rank's files from `staged` (Staging.files_dir) to storage and ends with the rank's share record. A
        file that does not look as its stamp says (before or after): error kind "lost".
        `files` and `duplicates` are ReleaseNote.share_of(rank); of duplicates only the checksums are taken, for the
        commit to compare.
    commit       {note: ReleaseNote, nonce, ranks: [r, ...]}
                 -> {committed: true, checkpoint, uri, bytes, warnings: [text]} | {committed: false, missing: [rank,
                 ...]}
        Publishes the manifest once every rank in `ranks` (absent: note.ranks) has its share record. committed false
        with missing [] means that the checkpoint has been retired meanwhile. Committed by another process before:
        committed true.
    retain       {run, attempt, keep: n | null, score_attribute: text | null, score_order: "max" | "min",
                  protect: [id, ...], validates: bool, over: [id, ...]}
                 -> {deleted: [id, ...], count, latest: CheckpointReport | null, best: CheckpointReport | null,
                 warnings: [text]}
        Removes what retention does not keep. `protect`: the checkpoint that this attempt resumed from and EVERY id that
        some member still shares or holds staged (unfinished uploads of earlier attempts that are not protected are
        removed). keep null removes nothing.
    reported     {run, over: [id, ...]}
                 -> {checkpoints: [{id, path, uri, step, epoch, world_size, metrics, validation}]}
        The run's good checkpoints, oldest first. `over`, also of retain: whose validations are over, although storage
        may still say that they are to come.
    history      {run, attempt, segment, text} -> {}
        Puts the whole file of that attempt: JSON lines. A first line {"kind": "start", "position": p} says at which
        position the attempt resumed.
    end          {run, summary: object, returned: path | null}      -> {}
        Writes the run's end record: it completed, and is not continued. `returned`: a file whose contents are kept
        beside it.
    code         {key, into: folder}         -> {files}
        Unpacks the packed code that `tj submit` left under that key of the job's folder, compared with the digest in
        its name.
    manifest     {checkpoint} | {uri}        -> {path, note: ReleaseNote, sums: [[path, checksum, algorithm], ...]}
        What is in a committed checkpoint, its files not looked at; `path` is its folder on a mounted path, else null.
    verify       {checkpoint} | {uri}, into: folder, paths: [path, ...], copy: bool   -> {path, bytes}
        Reads these files and compares sizes and checksums; `path` is the folder to restore from: the stored one on a
        mounted path (unless `copy`); else `into`, to which they are downloaded. Damage: error kind "damaged", and
        damaged.json is written.
    fetch        {note: ReleaseNote, paths: [path, ...], into: folder}   -> {}
        Brings these files of a checkpoint that is not committed yet, but whose shares hold them, to `into`, compared.
        Error kind "damaged" when they are not there.
    compare      {folder, files: [[path, size, checksum, algorithm], ...]}   -> {different: [path, ...]}
        Files that came to a local folder from elsewhere.
    mark_damaged {checkpoint, why}           -> {}

Lanes: share one after the other; probe and retain on a second thread; manifest, verify, fetch and compare on four
more, as ranks wait for them; all else on one of its own, so that a long upload holds up no small operation. End of
stdin: what is in flight is finished, small operations that wait are done, waiting shares are dropped; then the process
ends. SIGINT and
SIGTERM are ignored (they reach the whole process group): the agent decides, by closing stdin or SIGKILL.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, Optional

from trainjob.checkpoint import errors, packages
from trainjob.checkpoint.errors import CheckpointError
from trainjob.checkpoint.storage_child.operations import LANES, OPERATIONS, SMALL, perform

PROGRESS_INTERVAL_S = 0.2


class Child:
    """Reads requests, runs them in their lanes, writes replies."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests = requests
        self._replies = replies
        self._writing = threading.Lock()
        self._closing = False
        self._lanes: Dict[str, queue.SimpleQueue[Optional[Dict[str, Any]]]] = {
            lane: queue.SimpleQueue() for lane in LANES
        }

    def run(self) -> None:
        """Until stdin ends and what is in flight is finished."""
        team = [
            # As daemons: where one cannot be started, the others do not keep a process that reads nothing.
            threading.Thread(target=self._serve, args=(lane,), name=f"lane-{lane}-{n}", daemon=True)
            for lane, count in LANES.items()
            for n in range(count)
        ]
        for thread in team:
            thread.start()
        try:
            for line in self._requests:
                self._take(line)
        except OSError:
            pass  # an agent that was killed with replies unread: its socket says reset instead of end
        self._closing = True
        for name, lane in self._lanes.items():
            for _ in range(LANES[name]):
                lane.put(None)
        for thread in team:
            thread.join()

    def _take(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            number = request["id"]
        except (ValueError, KeyError, TypeError):
            self._fail(None, errors.INVALID, f"expected one JSON object with an id a line, found {line[:100]!r}")
            return
        operation = OPERATIONS.get(str(request.get("op")))
        if operation is None:
            self._fail(
                number, errors.INVALID, f"unknown operation {request.get('op')!r}; there are {', '.join(OPERATIONS)}"
            )
            return
        self._lanes[operation.lane].put(request)

    def _serve(self, lane: str) -> None:
        while True:
            request = self._lanes[lane].get()
            if request is None:
                return
            if self._closing and lane != SMALL:
                continue  # nobody waits for the answer: only what is short is still done
            self._perform(request)

    def _perform(self, request: Dict[str, Any]) -> None:
        number = request["id"]
        try:
            self.send(dict(perform(request, _Ticker(self, number).moved), id=number, ok=True))
        except CheckpointError as error:
            self._fail(number, error.kind, str(error))
        except OSError as error:
            self._fail(
                number,
                *errors.explain(
                    error, str(request.get("op")), error.filename or str(request.get("storage")), writing=False
                ),
            )
        except Exception as error:  # a fault of ours must reach the agent as an answer, not as silence
            self._fail(
                number,
                errors.INTERNAL,
                f"{type(error).__name__}: {error} (a fault of trainjob itself, in operation {request.get('op')})",
            )

    def _fail(self, number: Any, kind: str, message: str) -> None:
        self.send({"id": number, "ok": False, "error": {"kind": kind, "message": message}})

    def send(self, message: Dict[str, Any]) -> None:
        """Write one line. An agent that is gone reads none: what is in flight is finished all the same."""
        with self._writing:
            try:
                self._replies.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
                self._replies.flush()
            except OSError:
                pass


class _Ticker:
    """Adds up the bytes of one operation and tells them now and then: that is how the agent sees that bytes move."""

    def __init__(self, child: Child, number: Any) -> None:
        self._child = child
        self._number = number
        self._lock = threading.Lock()
        self._total = 0
        self._next = 0.0

    def moved(self, count: int) -> None:
        """Called from any thread."""
        now = time.monotonic()
        with self._lock:
            self._total += count
            if now < self._next:
                return
            self._next = now + PROGRESS_INTERVAL_S
            total = self._total
        self._child.send({"id": self._number, "progress": total})


def main() -> None:
    """Serve stdin until it ends."""
    packages.use()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Replies own the pipe; anything that is printed by accident goes to stderr.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Child(sys.stdin.buffer, replies).run()


if __name__ == "__main__":
    main()
