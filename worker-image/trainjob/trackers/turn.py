"""A feed's turn at its tracker, in the job's storage: carries out what `claim` decides, for `feed`.

All of it in the feed's own thread, beside the training. Each call of the storage is given up after CALL_S, all of them
together after WAIT_S: then it is said once that nobody else can be seen, and the tracker is fed all the same.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.stores.store import Store
from trainjob.trackers import claim
from trainjob.trackers.claim import Begin, Claim, Mark, Over, State, Take

CALL_S = 4.0
"""So long one call of the storage may take."""
POLL_S = 0.25
"""Between two looks at those before."""
LEAVE_TRIES = 3
"""So often it is told that this one has left: from there the next one continues."""
AGAIN_S = 30.0
"""After a storage has failed: a turn is tried for again."""

T = TypeVar("T")


class TurnOver(Exception):
    """Another process feeds the tracker; the text says which."""


class StorageSilent(Exception):
    """The storage fails, or does not answer; the text says how."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the waits last; tests have a time of their own."""

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    call_s: float = CALL_S


class Turn:
    """Of one feed. `say` is told what a person should know, each sentence once."""

    def __init__(self, store: Store, tracker: str, say: Callable[[str], None], limits: Limits | None = None) -> None:
        self._store, self._tracker, self._say = store, tracker, say
        self._limits = limits or Limits()
        self._process = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self.leaves = False
        """Another goes on in this attempt: no turn is taken from it."""
        self._place = (0, 0)
        self._number: int | None = None
        """The turn that was taken."""
        self._began = False
        self._mark: Mark | None = None
        """Up to where those before have recorded, or this one, as far as it is known."""
        self._untold = False
        """Its state is not what is stored."""
        self._seen: tuple[list[State | None], float] | None = None
        """What came of those before, since when: also over a storage that fails for a moment."""
        self._fails_since: float | None = None
        self._hanging: threading.Thread | None = None

    @property
    def look_s(self) -> float:
        """Between two looks while there is nothing to write."""
        return claim.BUCKET_LOOK_S if self._store.local("") is None else claim.LOOK_S

    def begin(self, run: int, attempt: int, patience_s: float | None = None) -> Mark | None:
        """Takes the turn and waits for those before: what they have recorded, as far as known. Raises TurnOver."""
        self._place = (run, attempt)
        deadline = self._now() + (claim.WAIT_S if patience_s is None else patience_s)
        while True:
            try:
                self._take(run, attempt, deadline)
                self._wait(deadline)
                self._tell(left=False)
                self._forget()
                return self._mark
            except StorageSilent as error:
                if self._now() >= deadline:
                    self._glance()
                    self._went_without(error)
                    return self._mark
                self._limits.pause(POLL_S)

    def check(self) -> None:
        """Before each batch. Raises TurnOver, once a later turn is taken."""
        if not self._began:
            if self._fails_since is None or self._now() < self._fails_since + AGAIN_S:
                return
            self.begin(*self._place, 0.0)
            return
        # One that fails has been waited for once.
        deadline = self._now() + (claim.WAIT_S if self._fails_since is None else 0.0)
        while True:
            try:
                newest = max(self._taken(), default=0)
                break
            except StorageSilent as error:
                if self._now() >= deadline:
                    self._went_without(error)
                    return
                self._limits.pause(POLL_S)
        self._fails_since = None
        assert self._number is not None
        over = claim.still_mine(self._number, newest)
        if over is not None:
            raise TurnOver(over.why)
        if self._untold:
            self._try_to_tell(left=False)

    def confirm(self, mark: Mark) -> None:
        """What was recorded: from there on the next one continues."""
        self._mark = claim.later(self._mark, mark)
        if self._began:
            self._try_to_tell(left=False)

    def asked(self, ask: Callable[[], T]) -> T:
        """What else the storage is asked for. Raises StorageSilent."""
        return self._call(ask, claim.WAIT_S)

    @property
    def is_kept(self) -> bool:
        """The storage has answered when it was asked last."""
        return self._fails_since is None

    def leave(self) -> None:
        """Whoever waits begins now."""
        if self._number is None:
            return
        for _ in range(LEAVE_TRIES - 1):
            try:
                self._tell(left=True)
                return
            except StorageSilent:
                self._limits.pause(POLL_S)
        self._try_to_tell(left=True)

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _take(self, run: int, attempt: int, deadline: float) -> None:
        while self._number is None:
            number = max(self._taken(), default=0)
            newest = self._claim_of(number) if number else None
            match claim.to_take(run, attempt, self._process, newest, leaves=self.leaves):
                case Over(why):
                    raise TurnOver(why)
                case Take(free):
                    mine = Claim(number=free, run=run, attempt=attempt, process=self._process)
                    if self._create(free, claim.dump_claim(mine)):
                        self._number = free
                    elif self._now() >= deadline:
                        raise StorageSilent("others take each turn first")
                    else:
                        self._limits.pause(POLL_S)

    def _create(self, number: int, data: bytes) -> bool:
        """Whether the name is ours; also by an earlier call of which nothing was heard."""
        key = layout.turn_key(self._tracker, number)
        return self._call(lambda: self._store.create(key, data) or self._store.read(key) == data)

    def _wait(self, deadline: float) -> None:
        assert self._number is not None
        began = deadline - claim.WAIT_S
        while True:
            taken = self._taken()
            before = claim.those_before(self._number, taken, self._state_of)
            now = self._now()
            if self._seen is None or before != self._seen[0]:
                self._seen = before, now
            self._mark = claim.later(claim.recorded(before), self._mark)
            unchanged_s = now - self._seen[1]
            match claim.to_begin(self._number, max(taken, default=0), before, unchanged_s, now - began):
                case Over(why):
                    raise TurnOver(why)
                case Begin(_, why):
                    self._began = True
                    if not all(state is not None and state.left for state in before):
                        self._say(f"{why}: it goes on here")
                    return
                case claim.Wait(why):
                    self._say(f"{why}: it is waited for, {claim.WAIT_S:g} s at most (the training goes on)")
                    self._limits.pause(POLL_S)

    def _glance(self) -> None:
        """What those before have recorded: one that has no turn, as on a full storage, repeats none of that."""
        with suppress(StorageSilent):
            taken = self._taken()
            before = claim.those_before(max(taken, default=0) + 1, taken, self._state_of)
            self._mark = claim.later(claim.recorded(before), self._mark)

    def _taken(self) -> list[int]:
        folder = layout.turns_folder(self._tracker)
        names = self._call(lambda: self._store.names(folder))
        return [number for number in (layout.parse_turn(name) for name, _ in names) if number is not None]

    def _claim_of(self, number: int) -> Claim:
        key = layout.turn_key(self._tracker, number)
        return claim.load_claim(number, self._call(lambda: self._store.read(key)))

    def _state_of(self, number: int) -> State | None:
        key = layout.turn_state_key(self._tracker, number)
        return claim.load_state(self._call(lambda: self._store.read(key)))

    def _tell(self, *, left: bool) -> None:
        assert self._number is not None
        key = layout.turn_state_key(self._tracker, self._number)
        # Nothing is recorded: then the run that comes next has to look for all of this one.
        mark = self._mark or Mark(self._place[0], 0, 0)
        data = claim.dump_state(State(began=self._began, left=left, mark=mark))
        self._untold = True
        self._call(lambda: self._store.put(key, data))
        self._untold = False

    def _try_to_tell(self, *, left: bool) -> None:
        try:
            self._tell(left=left)
        except StorageSilent as error:
            self._went_without(error)

    def _forget(self) -> None:
        assert self._number is not None
        for earlier in claim.to_forget(self._number, self._taken()):
            self._call(partial(self._store.delete, layout.turn_state_key(self._tracker, earlier)))
            self._call(partial(self._store.delete, layout.turn_key(self._tracker, earlier)))

    # -- the storage ---------------------------------------------------------------------------------------------------

    def _went_without(self, error: StorageSilent) -> None:
        self._fails_since = self._now()
        self._say(f"whose turn it is cannot be kept in the job's storage ({error}); it is fed all the same")

    def _now(self) -> float:
        return self._limits.clock()

    def _call(self, ask: Callable[[], T], limit_s: float | None = None) -> T:
        """In a thread, as a mount that hangs does not give back who asked it. Raises StorageSilent."""
        if self._hanging is not None and self._hanging.is_alive():
            raise StorageSilent("it does not answer")
        found: list[T] = []
        failed: list[str] = []

        def work() -> None:
            try:
                found.append(ask())
            except (StoreError, OSError) as error:
                failed.append(str(error))
            except Exception as error:  # whatever the client of a storage raises
                failed.append(f"{type(error).__name__}: {error}")

        self._hanging = threading.Thread(target=work, name=f"trainjob-turn-{self._tracker}", daemon=True)
        self._hanging.start()
        limit_s = self._limits.call_s if limit_s is None else limit_s
        self._hanging.join(limit_s)
        if found:
            return found[0]
        raise StorageSilent(failed[0] if failed else f"it has not answered within {limit_s:g} s")
