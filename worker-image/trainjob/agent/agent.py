"""The agent itself: which instruction it follows, what it reports, how it ends. Made by `__main__`.

The coordinator's instruction is a whole state: the newest one counts, whatever was being done for an older one is
cancelled. What takes long to import comes after the first report is on its way.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Optional

from trainjob.agent import steady
from trainjob.agent.background import Background, explain, where
from trainjob.agent.boot_notes import BootNotes
from trainjob.agent.config import AgentConfig
from trainjob.agent.control import farewell
from trainjob.agent.control.sync import Sync
from trainjob.agent.processes import strays
from trainjob.agent.processes.output import Console
from trainjob.agent.processes.ranks import Stuck
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.wire.addresses import join_address
from trainjob.agent.wire.peers import PeerServer
from trainjob_api import contract, wire

if TYPE_CHECKING:
    from trainjob.agent.attempts.attempt import Attempt
    from trainjob.agent.restoring.files import FileServer
    from trainjob.agent.site import Site
    from trainjob.agent.wire.frames import FrameConnection

DRAIN_S = 25.0
"""From SIGTERM to our end: below the 30 s that a pod has by default."""
RANKS_DRAIN_S = 15.0
"""Of it, what the ranks have for themselves."""
ORPHAN_S = 30.0
"""After the launcher's death: to commit the newest released checkpoint."""
STALL_S = 30.0
"""Uploads that stand still for so long are given up when we are told to exit."""
LONELY_S = 600.0
LONELY_POLL_S = 5.0
STOP_S = 35.0
"""At the very end, for ranks that are killed: a group inside a driver call dies when that returns."""
CLOSE_S = 2.0
LAST_WORD_S = 0.2
"""For the last report to leave; its answer would be a long poll."""


class Agent:
    """`run` until there is an exit code."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._console = Console()
        self._reaper = Reaper(self._loop)
        self._notes = BootNotes(config.work_dir)
        self._boot = self._notes.count_boot()
        self._peers = PeerServer(self._serve_file, self._complain)
        self._files: Optional[FileServer] = None
        self._sync = Sync(config, self.report, self._instructed, self._console.say)
        self._instruction: Optional[contract.Instruction] = None
        self._site: Optional[Site] = None
        self._background = Background(self._could_not_go_on)
        self._ready: Optional[asyncio.Task[None]] = None
        self._acting: Optional[asyncio.Task[None]] = None
        self._attempt: Optional[Attempt] = None
        self._failing = False
        """A fault of ours: what is staged is being stored, then it ends."""
        self._draining = False
        self._orphaned = False
        self._completed = False
        self._checked: Optional[int] = None
        self._found_run: Optional[int] = None
        self._warning: Optional[str] = None
        self._why = ""
        self._exit_code: asyncio.Future[int] = self._loop.create_future()

    async def run(self) -> int:
        """Everything; the exit code."""
        self._loop.set_exception_handler(self._fault)
        strays.adopt()
        await self._peers.start(self._config.host)
        self._background.spawn(self._sync.run())
        self._loop.add_signal_handler(signal.SIGTERM, self._drain)
        # Ctrl-C reaches the whole process group; on the local backend the launcher decides what it means.
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        self._loop.add_signal_handler(signal.SIGUSR1, self._forward, signal.SIGUSR1)
        if self._config.parent_fd is not None:
            os.set_blocking(self._config.parent_fd, False)
            self._loop.add_reader(self._config.parent_fd, self._parent_fd_readable)
        self._background.spawn(self._watch_loneliness())
        self._ready = self._background.task(self._prepare())
        try:
            code = await self._exit_code
            self._say_farewell(code)
            return code
        finally:
            self._background.cancel()
            await self._leave()

    def report(self) -> contract.AgentReport:
        """Everything we observe, whole."""
        config, attempt, leader = (
            self._config,
            self._attempt,
            self._attempt.leader if self._attempt is not None else None,
        )
        collectives, commits = (leader.collectives, leader.commits) if leader is not None else (None, None)
        return {
            "namespace": config.namespace,
            "job": config.job,
            "job_uid": config.job_uid,
            "slot": config.slot,
            "pod": config.pod,
            "pod_uid": config.pod_uid,
            "boot": self._boot,
            "clock": steady.now(),
            "address": join_address(config.host, self._peers.port),
            "acknowledged": dict(self._instruction) if self._instruction is not None else None,
            "attempt": attempt.number if attempt is not None else 0,
            "quiet": attempt is None or not attempt.alive,
            "joined": attempt is not None and attempt.joined_at_leader,
            "ranks": [r.report() for r in attempt.ranks] if attempt is not None else [],
            "lost_peers": attempt.lost_peers if attempt is not None else [],
            "unreached_s": round(attempt.unreached_s, 3) if attempt is not None else 0.0,
            "draining": self._draining,
            "uploads": self._site.saving.waiting if self._site is not None else 0,
            "completed": self._completed or (attempt is not None and attempt.is_complete),
            "checked": self._checked,
            "run": attempt.run if attempt is not None else self._found_run,
            "resumed_from": attempt.resumed_from if attempt is not None else None,
            "progress": collectives.progress if collectives is not None else None,
            "latest": commits.latest if commits is not None else None,
            "best": commits.best if commits is not None else None,
            "checkpoint_count": commits.count if commits is not None else 0,
            "warning": self._warning,
            "checkpoint_trouble": commits.trouble[: contract.MESSAGE_LIMIT]
            if commits is not None and commits.trouble is not None
            else None,
        }

    # -- preparation ---------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """What the first report need not wait for."""
        await asyncio.sleep(0)
        from trainjob.agent.site import Site
        from trainjob.agent.storing.code import JobCode
        from trainjob.agent.storing.saving import Saving
        from trainjob.agent.storing.storage import StorageChild
        from trainjob.agent.wire.rank_calls import SocketFolder

        config = self._config
        storage = (
            None if config.spec.storage is None else StorageChild(self._reaper, config.spec.storage, config.work_dir)
        )
        work = config.work_dir
        saving = Saving(
            os.path.join(work, "staging"),
            storage,
            self._uploads_changed,
            self._could_not_go_on,
            given_out=os.path.join(work, "restore"),
        )
        folder = SocketFolder(config.work_dir, config.pod_uid)
        self._site = Site(
            config,
            self._console,
            self._reaper,
            storage,
            saving,
            folder.path,
            self._sync.changed,
            self._warn,
            JobCode(config.code, storage, self._console),
            self._could_not_go_on,
        )
        if storage is not None:
            # Last: whatever cannot be made here leaves no process behind.
            storage.start()

    def _uploads_changed(self, drained: bool) -> None:
        """Only once the ranks have ended does anybody wait for the uploads; while they run each checkpoint drains
        them.
        """
        self._sync.changed(drained and (self._attempt is None or not self._attempt.alive))

    def _complain(self, text: str, lasting: bool) -> None:
        """Of who calls us, or whom we call."""
        self._console.say(text)
        if lasting:
            self._warn(text)

    def _warn(self, text: Optional[str]) -> None:
        self._warning = None if text is None else text[: contract.MESSAGE_LIMIT]
        self._sync.changed(False)

    # -- instructions --------------------------------------------------------------------------------------------------

    def _instructed(self, instruction: contract.Instruction) -> None:
        if instruction == self._instruction:
            return
        self._instruction = instruction
        self._sync.changed(True)
        if self._orphaned or self._draining or self._failing:
            return
        self._act(lambda: self._follow(instruction))

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

    async def _follow(self, instruction: contract.Instruction) -> None:
        what = instruction.get("do")
        if what == contract.DO_RUN:
            await self._run_attempt(instruction)
        elif what == contract.DO_HOLD:
            if self._attempt is not None:
                await self._attempt.stop(contract.END_STOPPED, float(instruction.get("grace_s") or 0))
            elif self._site is not None:
                # Our container was started anew; perhaps no attempt follows.
                await self._site.saving.commit_what_is_left()
        elif what == contract.DO_CHECK:
            if self._attempt is not None:
                await self._attempt.stop(contract.END_STOPPED, 0)
            await self._look(int(instruction.get("attempt") or 0))
        elif what == contract.DO_EXIT:
            if self._attempt is not None:
                await self._attempt.stop(contract.END_STOPPED, float(instruction.get("grace_s") or 0))
            await self._finish_uploads()
            self._end(int(instruction.get("exit_code") or 0), str(instruction.get("reason") or ""))

    async def _run_attempt(self, instruction: contract.Instruction) -> None:
        from trainjob.agent.attempts.attempt import Attempt

        number, current = int(instruction["attempt"]), self._attempt
        if current is not None and number < current.number:
            return
        if current is not None and number == current.number and not current.unused:
            current.update(instruction)
            return
        if current is not None:
            await current.stop(contract.END_STOPPED, 0)
            current.close()
        assert self._site is not None
        self._attempt = Attempt(self._site, self._peers, self._notes, instruction)
        self._warning = None
        self._sync.changed(True)
        self._attempt.begin()

    async def _look(self, after: int) -> None:
        """Whether storage holds the run's end record; nothing is started."""
        from trainjob.agent.control.look import look

        assert self._site is not None
        found = await look(self._site.storage, self._config.job_uid, self._console.say)
        self._completed = self._completed or found.completed
        self._checked, self._found_run = after, found.run
        if found.trouble is not None:
            self._warn(found.trouble)
        self._sync.changed(True)

    async def _finish_uploads(self) -> None:
        """Until all is stored and committed, or nothing has moved for STALL_S."""
        from trainjob.agent import finishing

        if self._site is None:
            return
        attempt, saving = self._attempt, self._site.saving
        if not await finishing.while_it_moves(
            finishing.finish(attempt, saving), lambda: finishing.moved(attempt, saving), STALL_S
        ):
            self._console.say("uploads stand still: giving them up")

    async def _finish(self) -> None:
        from trainjob.agent import finishing

        if self._site is not None:
            await finishing.finish(self._attempt, self._site.saving)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """SIGTERM: this pod goes away."""
        if self._draining or self._orphaned or self._failing:
            return
        self._draining = True
        self._sync.changed(True)
        self._act(self._drained)

    async def _drained(self) -> None:
        deadline = self._loop.time() + DRAIN_S
        if self._attempt is not None:
            await self._attempt.stop(contract.END_STOPPED, RANKS_DRAIN_S)
        await self._within(self._finish(), deadline - self._loop.time())
        told = self._instruction or {}
        if told.get("do") == contract.DO_EXIT and "exit_code" in told:
            self._end(int(told["exit_code"]), str(told.get("reason") or ""))
        else:
            self._end(
                contract.EXIT_OK if self.report()["completed"] else contract.EXIT_REMOVED,
                "its pod was told to end (SIGTERM)",
            )

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
        if self._attempt is not None:
            await self._attempt.stop(contract.END_STOPPED, 0)
        await self._within(self._finish(), ORPHAN_S)
        self._end(contract.EXIT_LAUNCHER_DIED, "the launcher died")

    async def _within(self, work: Awaitable[None], timeout_s: float) -> None:
        try:
            await asyncio.wait_for(work, max(timeout_s, 0.1))
        except asyncio.TimeoutError:
            self._console.say("not all that is staged could be stored in time")

    async def _watch_loneliness(self) -> None:
        while True:
            await asyncio.sleep(LONELY_POLL_S)
            idle = (self._attempt is None or not self._attempt.alive) and (
                self._site is None or not self._site.saving.waiting
            )
            if idle and self._sync.alone_for(self._loop.time()) > LONELY_S:
                why = f"no coordinator for {LONELY_S:.0f} s, and nothing left to do"
                self._console.say(why)
                self._end(contract.EXIT_OK if self.report()["completed"] else contract.EXIT_NO_COORDINATOR, why)

    def _end(self, code: int, why: str) -> None:
        if not self._exit_code.done():
            self._why = why
            self._exit_code.set_result(code)

    def _say_farewell(self, code: int) -> None:
        """Before anything can hold us up: SIGKILL may be near. On the local backend nobody reads it."""
        if self._config.parent_fd is None:
            farewell.leave(contract.TERMINATION_LOG, farewell.farewell(self.report(), code, self._why))

    async def _leave(self) -> None:
        """Nothing of ours stays: no process, no socket, no folder but the pod's own."""
        if self._attempt is not None:
            try:
                await asyncio.wait_for(self._attempt.stop(contract.END_STOPPED, 0), STOP_S)
            except (Stuck, OSError, asyncio.TimeoutError) as error:
                self._console.say(explain(error))
            self._attempt.close()
        if not self._orphaned:
            await self._sync.last_word(LAST_WORD_S)
        self._sync.close()
        self._peers.close()
        if self._site is not None:
            self._site.saving.close()
            if self._site.storage is not None:
                await self._site.storage.close(CLOSE_S)
            self._remove(self._site.socket_folder)
        if self._orphaned:
            self._remove(self._config.work_dir)
        self._console.close(CLOSE_S)

    @staticmethod
    def _remove(folder: str) -> None:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)

    # -- signals, files, faults ----------------------------------------------------------------------------------------

    def _interrupted(self) -> None:
        if self._config.parent_fd is None:
            self._drain()

    def _forward(self, number: int) -> None:
        if self._attempt is not None:
            self._attempt.forward(number)

    def _serve_file(self, connection: FrameConnection, message: wire.Message) -> None:
        from trainjob.agent.restoring import files
        from trainjob.agent.wire.for_files import Refused

        if self._site is None:
            files.say(connection, Refused("nothing lies here"))
            return
        self._files = self._files or files.FileServer(self._site.saving)
        self._background.spawn(self._files.give(connection, message))

    def _could_not_go_on(self, error: BaseException) -> None:
        """A fault in what this agent is made of: it ends, so that its pod is replaced."""
        self._console.say(f"{explain(error)}\n{where(error)}")
        if self._failing or self._site is None:
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
            if self._attempt is not None and not isinstance(error, Stuck):
                await self._attempt.stop(contract.END_INTERNAL, 0)
            await self._within(self._finish(), ORPHAN_S)
        finally:
            self._end(contract.EXIT_OK if self.report()["completed"] else contract.EXIT_INTERNAL, explain(error))

    def _fault(self, loop: asyncio.AbstractEventLoop, context: Dict[str, Any]) -> None:
        """What the loop catches. A connection that it closes for it (a peer that sends nonsense) is said, and
        survived: who is at its other end hears of that. A callback or a task of ours that fails is a fault of ours.
        """
        error = context.get("exception")
        if isinstance(error, Exception) and any(name in context for name in ("handle", "task", "future")):
            self._could_not_go_on(error)
            return
        self._console.say(f"fault: {context.get('message')}")
        if error is not None:
            self._console.say(where(error))
