"""The process that feeds a job's trackers (spec.tracking), beside rank 0's agent, which starts it as
`python -m trainjob.trackers.process`.

There is one for each attempt that it leads. It reads the reports on the job's storage, as they are written
there, so that whatever a tracker does touches neither the training nor the agent. On stdin the agent says how the job
ended: a line of JSON, `{"error": null}` or with the reason; without one, stdin's end is the attempt's, and another
process goes on. It ends soon after that, whatever hangs in it. What it says goes to stderr, the pod's log.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from trainjob.checkpoint import packages
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.integrations.needed import MissingLibraryError
from trainjob.launch.handover.callbacks import RunContext
from trainjob.launch.outcome.reports import Follower
from trainjob.screen import wording
from trainjob.session.warm import memory
from trainjob.trackers import kinds, mlflow_logger, output
from trainjob.trackers.feed import Feed
from trainjob.trackers.tracker import Tracker
from trainjob_api import contract

LOOK_S, BUCKET_LOOK_S = 0.5, 5.0
"""Between two looks at the reports; those at a bucket cost requests."""
CATCH_UP_S = 0.05
"""Between two looks at the end, for a tracker that is behind."""
NICE = 10
"""Behind the ranks, whose cores these are."""
STORE_S = 5.0
"""So long a bucket is tried in one look."""


class JobFailedError(Exception):
    """What trackers are told of a job that did not complete."""


class Word(Protocol):
    """What the agent says."""

    def wait(self, seconds: float) -> bool:
        """Whether it was said, or stdin has ended, within that time."""
        ...

    @property
    def ending(self) -> tuple[bool, str | None]:
        """(the job is over, why it failed)."""
        ...


class Stdin:
    """Of the agent."""

    def __init__(self, fd: int = 0) -> None:
        self._fd, self._read, self._ended = fd, b"", False

    def wait(self, seconds: float) -> bool:
        """See `Word`."""
        until = time.monotonic() + seconds
        while not self._ended and b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                return False
            data = os.read(self._fd, 4096)
            self._read, self._ended = self._read + data, not data
        return True

    @property
    def ending(self) -> tuple[bool, str | None]:
        """See `Word`."""
        line, complete, _ = self._read.partition(b"\n")
        return (True, json.loads(line).get("error")) if complete else (False, None)


def end_within(seconds: float, fd: int = 0) -> None:
    """From the agent's word on. A storage that hangs gives back neither a thread that reads it nor, at Python's end,
    the process. Waits in a thread of its own.
    """

    def watch() -> None:
        select.select([fd], [], [])  # once it has ended it stays readable
        time.sleep(seconds)
        say(f"it has not come to its end within {wording.duration(seconds)}: what is left is given up")
        time.sleep(output.DRAIN_S)
        os._exit(contract.EXIT_OK)

    threading.Thread(target=watch, name="trainjob-end", daemon=True).start()


class Fed:
    """One tracker, with its own place in the reports: one that falls behind holds no other back, and what it has no
    room for waits on storage.
    """

    def __init__(self, tracker: Tracker, context: RunContext, store: Store, attempt: int) -> None:
        self.feed = Feed(tracker, context, attempt=attempt)
        self.patience_s = tracker.patience_s
        self._follower, self._attempt = Follower(store), attempt

    def look(self, run: int, *, final: bool = False) -> bool:
        """Whether it has all that there is now."""
        room = self.feed.room
        found = self._follower.poll(run, self._attempt, final=final, most=room) if room else []
        for report in found:
            self.feed.put(report)
        return len(found) < room and not self._follower.failed

    def rest(self, run: int, *, final: bool) -> None:
        """All that is left, also what is too much: it counts as lost."""
        for report in self._follower.poll(run, self._attempt, final=final):
            self.feed.put(report)

    @property
    def is_blind(self) -> bool:
        """The storage could not be read at the last look."""
        return self._follower.failed

    @property
    def waits_s(self) -> float:
        """So long it is waited for at the end until it has all; a storage that is away leaves it time to close."""
        return self.patience_s / 2 if self.is_blind else self.patience_s


class Feeding:
    """Of all trackers of one attempt."""

    def __init__(self, words: Sequence[str], context: RunContext, store: Store, attempt: int) -> None:
        self._fed: list[Fed] = []
        places: set[tuple[str, str]] = set()
        for word in words:
            try:
                tracker = kinds.made(word)
                place = tracker.place(context)
            except Exception as error:  # whatever stands in the variables of a library: the others are fed
                named = "" if isinstance(error, (MissingLibraryError, ValueError)) else f"{type(error).__name__}: "
                say(f"{word}: {named}{error} (the training goes on without it)")
                continue
            if (type(tracker).__name__, place) in places:
                say(f"{word}: another tracker writes to the same place, {place}; it is fed once")
                continue
            places.add((type(tracker).__name__, place))
            say(f"{word}: reports go to {place}")
            self._fed.append(Fed(tracker, context, store, attempt))

    def look(self, run: int) -> bool:
        """At the reports that are new. False: nobody is there to be fed here any more."""
        for fed in self._fed:
            fed.look(run)
        return not all(fed.feed.is_over for fed in self._fed)

    def finish(self, run: int, *, job_is_over: bool, error: str | None) -> None:
        """What is left is recorded, for as long as the trackers have patience."""
        began, failed = time.monotonic(), None if error is None else JobFailedError(error)
        behind = self._fed
        while behind := [fed for fed in behind if not fed.look(run, final=job_is_over) and fed.feed.is_alive]:
            passed = time.monotonic() - began
            if all(passed >= fed.waits_s for fed in behind):
                break
            time.sleep(LOOK_S if any(fed.is_blind for fed in behind) else CATCH_UP_S)
        passed = time.monotonic() - began
        for fed in self._fed:
            fed.rest(run, final=job_is_over)
            if fed.is_blind and job_is_over:
                say("the job's storage cannot be read at its end: what came last may be missing; `tj history` has all")
            fed.feed.last(failed, max(0.0, fed.patience_s - passed), closes=job_is_over)
        for fed in self._fed:
            fed.feed.wait()


def say(text: str) -> None:
    """In the pod's log."""
    output.say("tracking", text)


def follow(feeding: Feeding, word: Word, run: int, look_s: float) -> None:
    """Until the agent says that it is over."""
    while feeding.look(run):
        if word.wait(look_s):
            break
    job_is_over, error = word.ending
    feeding.finish(run, job_is_over=job_is_over, error=error)


def main(argv: Sequence[str] | None = None) -> None:
    """Ends with 0, whatever trackers did."""
    parser = argparse.ArgumentParser(prog="python -m trainjob.trackers.process", allow_abbrev=False)
    for name in ("--storage", "--name", "--folder"):
        parser.add_argument(name, required=True)
    for name in ("--run", "--attempt"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--ends-within", type=float, required=True)
    parser.add_argument("words", nargs="+")
    args = parser.parse_args(argv)
    with output.bounded():
        in_bucket = args.storage.startswith("s3://")
        if in_bucket:
            packages.use()
        end_within(args.ends_within)
        for variable, value in mlflow_logger.SOON.items():
            os.environ.setdefault(variable, value)
        memory.go_first()
        os.nice(NICE)
        os.chdir(args.folder)  # the user's, for folders that a tracker is given: nothing is imported from there
        context = RunContext(name=args.name, path=args.storage, run_config=None, scaling_config=None)
        feeding = Feeding(args.words, context, open_store(args.storage, STORE_S), args.attempt)
        follow(feeding, Stdin(), args.run, BUCKET_LOOK_S if in_bucket else LOOK_S)
    # A tracker that hangs has a thread of its own, which is not waited for.
    os._exit(contract.EXIT_OK)


if __name__ == "__main__":
    main()
