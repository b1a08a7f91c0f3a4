"""The agent itself: what it reports, whose word it follows, how it ends. Made by `__main__`; what it does is `work`.

The coordinator's instruction is a whole state: the newest one counts, whatever was being done for an older one is
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from typing import Any, Awaitable, Callable, Dict, Iterator, Optional, cast

from trainjob.agent import observed, steady
from trainjob.agent.background import Background, explain, of_a_thread, where, within
from trainjob.agent.boot_notes import BootNotes
from trainjob.agent.config import AgentConfig
from trainjob.agent.control import farewell
from trainjob.agent.control.sync import Sync
from trainjob.agent.draining import Drain
from trainjob.agent.processes import family
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.ranks import Stuck
from trainjob.agent.wire import accepting
from trainjob.agent.wire.accepting import Accepting
from trainjob.agent.wire.addresses import join_address
from trainjob.agent.work import Exit, Work
from trainjob_api import contract

STEP_S = 0.5
"""How often ranks that train on are looked at."""
ORPHAN_S = 30.0
"""After the launcher's death: to commit the newest released checkpoint."""
LONELY_S = 600.0
"""An agent that nobody answers, and that has nothing left to do for its attempt, ends then and gives its pod back."""
LONELY_POLL_S = 5.0
CLOSE_S = 2.0
LAST_WORD_S = 2.0
"""For the last report, which the coordinator answers at once; one that is away is not waited for any longer."""


class Agent:
    """`run` until there is an exit code."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._console = Console(verbose=config.verbose, on_fault=of_a_thread(self._loop))
        self._notes = BootNotes(config.work_dir)
        self._boot = self._notes.count_boot()
        self._sync = Sync(config, self.report, self._instructed, self._console.say)
        self._work = Work(
            config,
            self._console,
            self._notes,
            self._sync.changed,
            self._sync.progressed,
            self._warn,
            self._could_not_go_on,
        )
        self._instruction: Optional[contract.Instruction] = None
        self._background = Background(self._could_not_go_on)
        self._ready: Optional[asyncio.Task[None]] = None
        self._acting: Optional[asyncio.Task[None]] = None
        self._failing = False
        """A fault of ours: what is staged is being stored, then it ends."""
        self._accepting = Accepting()
        self._draining = False
        self._heard = asyncio.Event()
        """Another instruction came."""
        self._orphaned = False
        self._warning: Optional[str] = None
        self._why = ""
        self._exit_code: asyncio.Future[int] = self._loop.create_future()

    async def run(self) -> int:
        """Everything; the exit code."""
        self._loop.set_exception_handler(self._fault)
        family.adopt()
        await self._work.listen()
        self._background.spawn(self._sync.run())
        self._loop.add_signal_handler(signal.SIGTERM, self._drain)
        # Ctrl-C reaches the whole process group; on the local backend the launcher decides what it means.
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        self._loop.add_signal_handler(signal.SIGUSR1, self._work.forward, signal.SIGUSR1)
        if self._config.parent_fd is not None:
            os.set_blocking(self._config.parent_fd, False)
            self._loop.add_reader(self._config.parent_fd, self._parent_fd_readable)
        self._background.spawn(self._watch_loneliness())
        self._ready = self._background.task(self._work.prepare())
        try:
            code = await self._exit_code
            self._say_farewell(code)
            return code
        finally:
            self._background.cancel()
            await self._leave()

    def report(self) -> contract.AgentReport:
        """Everything we observe, whole."""
        config, work = self._config, self._work
        report: Dict[str, Any] = {
            "namespace": config.namespace,
            "job": config.job,
            "job_uid": config.job_uid,
            "slot": config.slot,
            "pod": config.pod,
            "pod_uid": config.pod_uid,
            "boot": self._boot,
            "clock": steady.now(),
            "address": join_address(config.host, work.port),
            "acknowledged": dict(self._instruction) if self._instruction is not None else None,
            "draining": self._draining,
            "warming": work.warming,
            "uploads": work.site.saving.waiting if work.site is not None else 0,
            "completed": work.is_complete,
            "checked": work.checked,
            "warning": self._warning,
            "forks": work.site.starter.report() if work.site is not None else None,
            **observed.of_attempt(work.attempt, work.found_run, work.found_shown),
        }
        return cast(contract.AgentReport, report)

    def _warn(self, text: Optional[str]) -> None:
        self._warning = None if text is None else text[: contract.MESSAGE_LIMIT]
        self._sync.changed(False)

    # -- instructions --------------------------------------------------------------------------------------------------

    def _instructed(self, instruction: contract.Instruction) -> None:
        if instruction == self._instruction:
            return
        self._instruction = instruction
        self._sync.changed(True)
        self._heard.set()
        if self._draining:
            self._work.keep_up(instruction)
        if self._orphaned or self._draining or self._failing:
            return
        told = steady.now()
        self._act(lambda: self._follow(instruction, told))

    def _act(self, work: Callable[[], Awaitable[None]]) -> None:
        """The newest wish cancels the one before."""
        before, self._acting = self._acting, None

        async def act() -> None:
            if before is not None:
                before.cancel()
                await asyncio.wait([before])
            if self._ready is not None:
                await self._ready
            await work()

        self._acting = self._background.task(act())

    async def _follow(self, instruction: contract.Instruction, told: float) -> None:
        exit_ = await self._work.follow(instruction, told)
        if exit_ is not None:
            self._end(exit_.code, exit_.reason)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """SIGTERM: this pod goes away."""
        if self._draining or self._orphaned or self._failing:
            return
        self._draining = True
        self._sync.changed(True)
        self._act(self._drained)

    async def _drained(self) -> None:
        drain = Drain(self._work.training, self._loop.time())
        await self._train_on(drain)
        await self._work.stop(contract.END_STOPPED, drain.ranks_s)
        await self._within(self._work.finish_while_it_moves(), drain.end_by - self._loop.time())
        told = self._instruction or {}
        if told.get("do") == contract.DO_EXIT and "exit_code" in told:
            exit_ = Exit(int(told["exit_code"]), str(told.get("reason") or ""))
            await self._within(self._work.tell_trackers(exit_), drain.end_by - self._loop.time())
            self._end(exit_.code, exit_.reason)
        else:
            self._end(
                contract.EXIT_OK if self._work.is_complete else contract.EXIT_REMOVED,
                "its pod was told to end (SIGTERM)",
            )

    async def _train_on(self, drain: Drain) -> None:
        """To the next checkpoint, if the operator gives the ranks the time."""
        while True:
            self._heard.clear()
            now = self._loop.time()
            until = drain.trains_until(self._work.training, self._instruction or {}, now)
            if until is None:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._heard.wait(), min(STEP_S, until - now))

    def _parent_fd_readable(self) -> None:
        assert self._config.parent_fd is not None
        try:
            if os.read(self._config.parent_fd, 4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.remove_reader(self._config.parent_fd)
        self._orphaned = True
        self._act(self._orphan)

    async def _orphan(self) -> None:
        """The launcher died: nobody will tell us anything any more."""
        await self._work.stop(contract.END_STOPPED, 0)
        await self._within(self._work.finish(), ORPHAN_S)
        self._end(contract.EXIT_LAUNCHER_DIED, "the launcher died")

    async def _within(self, work: Awaitable[None], timeout_s: float) -> None:
        try:
            await within(work, max(timeout_s, 0.1))
        except asyncio.TimeoutError:
            self._console.say("not all that is staged could be stored in time")

    @property
    def _is_left_alone(self) -> bool:
        return self._sync.alone_for(self._loop.time()) > LONELY_S and self._work.is_idle

    async def _watch_loneliness(self) -> None:
        """Should rank 0's agent be gone, nobody but us is left who could commit what we have stored."""
        while True:
            await asyncio.sleep(LONELY_POLL_S)
            if not self._is_left_alone:
                continue
            await self._within(self._work.finish(), ORPHAN_S)
            if self._is_left_alone:
                why = f"no coordinator for {LONELY_S:.0f} s, and nothing left to do"
                self._console.say(why)
                self._end(contract.EXIT_OK if self._work.is_complete else contract.EXIT_NO_COORDINATOR, why)

    def _end(self, code: int, why: str) -> None:
        if not self._exit_code.done():
            self._why = why
            self._exit_code.set_result(code)

    def _say_farewell(self, code: int) -> None:
        """Before anything can hold us up: SIGKILL may be near. On the local backend nobody reads it."""
        if self._config.parent_fd is None:
            farewell.leave(contract.TERMINATION_LOG, farewell.farewell(self.report(), code, self._why))

    async def _leave(self) -> None:
        """Nothing of ours stays: no process, no socket, no folder but the pod's own. What fails of that is said, and
        nothing is left out for it.
        """
        with self._said():
            await self._work.end()
        if not self._orphaned:
            with self._said():
                await self._sync.last_word(LAST_WORD_S)
        self._sync.close()
        with self._said():
            await self._work.close()
        if self._orphaned:
            shutil.rmtree(self._config.work_dir, ignore_errors=True)
        with self._said():
            self._console.close(CLOSE_S)

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._console.say(f"{explain(error)}\n{where(error)}")

    # -- signals, files, faults ----------------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        if self._config.parent_fd is None:
            self._drain()

    def _could_not_go_on(self, error: BaseException) -> None:
        """A fault in what this agent is made of: it ends, so that its pod is replaced."""
        self._console.say(f"{explain(error)}\n{where(error)}")
        if self._failing or self._work.site is None:
            self._end(contract.EXIT_INTERNAL, explain(error))
            return
        self._failing = True
        acting = self._acting
        if acting is not None:
            acting.cancel()
        self._background.spawn(self._give_up(error))

    async def _give_up(self, error: BaseException) -> None:
        """With this pod the only copy of what is staged may go: it is stored first, as far as that still works. A
        second fault meanwhile ends it at once.
        """
        try:
            if not isinstance(error, Stuck):
                await self._work.stop(contract.END_INTERNAL, 0)
            await self._within(self._work.finish(), ORPHAN_S)
        finally:
            self._end(contract.EXIT_OK if self._work.is_complete else contract.EXIT_INTERNAL, explain(error))

    def _fault(self, loop: asyncio.AbstractEventLoop, context: Dict[str, Any]) -> None:
        """What the loop catches. A connection that it closes for it (a peer that sends nonsense) is said, and
        survived: who is at its other end hears of that. A callback or a task of ours that fails is a fault of ours, and
        so is a place where nobody is let in any more.
        """
        error = context.get("exception")
        if isinstance(error, Exception) and any(name in context for name in ("handle", "task", "future")):
            self._could_not_go_on(error)
            return
        if isinstance(error, OSError) and context.get("message") == accepting.MESSAGE:
            if self._accepting.failed(self._loop.time()):
                self._console.say(f"no connection can be accepted for now: {error}")
            elif self._accepting.is_lasting and not self._failing:
                self._could_not_go_on(error)
            return
        self._console.say(f"fault: {context.get('message')}")
        if error is not None:
            self._console.say(where(error))
