"""What an agent does: what its parts share, the attempt it is in, and one instruction of the coordinator at a time.

Made by `agent`, which knows when the agent ends, and why. What takes long to import comes after the first report is on
its way.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Optional

from trainjob.agent.background import Background, OnFault, explain, within
from trainjob.agent.boot_notes import BootNotes
from trainjob.agent.config import AgentConfig
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.ranks import Stuck
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.standstill import Standstill
from trainjob.agent.wire.peers import PeerServer
from trainjob_api import contract, wire

if TYPE_CHECKING:
    from trainjob.agent.attempts.attempt import Attempt
    from trainjob.agent.restoring.serving import FileServer
    from trainjob.agent.site import Site
    from trainjob.agent.wire.frames import FrameConnection

STALL_S = 30.0
"""Uploads that stand still for so long are given up when we are told to exit."""
STOP_S = 35.0
"""At the very end, for ranks that are killed: a group inside a driver call dies when that returns."""
CLOSE_S = 2.0
LEAVE_S = 6.0
"""For the trackers' process of a worker that goes away."""


class Exit(NamedTuple):
    """The agent is told to end."""

    code: int
    reason: str


class Work:
    """One per agent. `changed`: what is reported is another; True: say so at once. `progressed`: nothing but that
    training has come further.
    """

    def __init__(
        self,
        config: AgentConfig,
        console: Console,
        notes: BootNotes,
        changed: Callable[[bool], None],
        progressed: Callable[[], None],
        warn: Callable[[Optional[str]], None],
        on_fault: OnFault,
    ) -> None:
        self._config = config
        self._console = console
        self._notes = notes
        self._changed = changed
        self._progressed = progressed
        self._warn = warn
        self._on_fault = on_fault
        self._reaper = Reaper(asyncio.get_running_loop())
        self._background = Background(on_fault)
        self._peers = PeerServer(self._serve_file, self._complain)
        self._files: Optional[FileServer] = None
        self._completed = False
        self._still: Optional[Standstill] = None
        """Of the uploads, once we wait for them to end."""
        self.site: Optional[Site] = None
        self.attempt: Optional[Attempt] = None
        self._is_bringing = False
        """The code that a warm parent would import is on its way."""
        self.checked: Optional[int] = None
        self.found_run: Optional[int] = None
        self.found_shown: Mapping[str, Any] = {}

    @property
    def port(self) -> int:
        """On which other agents reach us."""
        return self._peers.port

    @property
    def is_complete(self) -> bool:
        """The run's end record is there."""
        return self._completed or (self.attempt is not None and self.attempt.is_complete)

    @property
    def is_idle(self) -> bool:
        """No rank lives, nothing waits to be stored, and no other worker needs this one to be complete."""
        attempt = self.attempt
        if attempt is not None and (attempt.alive or attempt.awaits_others):
            return False
        return self.site is None or not self.site.saving.waiting

    @property
    def warming(self) -> bool:
        """What ranks are forks of is still being made."""
        return self.site is None or self._is_bringing or self.site.starter.warming

    def _is_warm(self) -> None:
        """Who waits without an attempt may be a spare, which counts from now on."""
        if self.attempt is None:
            self._changed(True)

    async def listen(self) -> None:
        """For other agents."""
        await self._peers.start(self._config.host)

    async def prepare(self) -> None:
        """What the first report need not wait for."""
        await asyncio.sleep(0)
        from trainjob.agent.attempts import forking
        from trainjob.agent.processes import memory
        from trainjob.agent.site import Site
        from trainjob.agent.storing.code import JobCode
        from trainjob.agent.storing.saving import Saving
        from trainjob.agent.storing.storage import StorageChild
        from trainjob.agent.tracking import Tracking
        from trainjob.agent.warm.starter import WarmStarter
        from trainjob.agent.wire.rank_calls import SocketFolder
        from trainjob.checkpoint.staging.area import Staging
        from trainjob.checkpoint.staging.recycling import Recycling

        config = self._config
        storage = (
            None if config.spec.storage is None else StorageChild(self._reaper, config.spec.storage, config.work_dir)
        )
        work = config.work_dir
        recycling = Recycling(forking.recycled_of(config), memory.room) if config.spec.recycle else None
        staging = Staging(os.path.join(work, "staging"), config.spec.storage, os.path.join(work, "restore"), recycling)
        saving = Saving(staging, storage, self._uploads_changed, self._on_fault)
        folder = SocketFolder(config.work_dir, config.pod_uid)
        starter = WarmStarter(
            self._reaper,
            self._console,
            config.command,
            config.spec.processes * (config.spec.workers if config.machine_ranks else 1),
            config.spec.prefork,
            config.spec.preload,
            os.path.join(work, "logs", "warm-parent.log"),
            os.path.join(work, contract.IMPORTED),
            config.kept_parent,
            self._is_warm,
        )
        self.site = Site(
            config,
            self._console,
            self._reaper,
            storage,
            saving,
            folder.path,
            self._changed,
            self._progressed,
            self._warn,
            starter,
            JobCode(config.code, storage, self._console),
            Tracking(config, self._reaper, self._console),
            self._on_fault,
        )
        if storage is not None:
            # Last: whatever cannot be made here leaves no process behind.
            storage.start()
        try:
            tmp = forking.make_tmp(self.site)
        except OSError as error:
            # The attempt makes it again, and tells the job.
            self._console.say(f"the ranks' TMPDIR cannot be made yet: {error}")
            tmp = ""
        starter.begin(tmp, self.site.code.is_here)
        self._is_bringing = not self.site.code.is_here
        if self._is_bringing:
            self._background.spawn(self._bring_code(self.site))
        if not self.warming:
            self._is_warm()

    async def _bring_code(self, site: Site) -> None:
        """Ahead of the first attempt: a warm parent can only be made for code that is there. The attempt tries again
        what fails here, and tells of it.
        """
        from trainjob.agent.storing.storage import StorageError

        try:
            await site.code.unpack()
            site.starter.warm_up()
        except StorageError:
            pass
        finally:
            self._is_bringing = False
        if not self.warming:
            self._is_warm()

    # -- instructions --------------------------------------------------------------------------------------------------

    async def follow(self, instruction: contract.Instruction, told: float) -> Optional[Exit]:
        """Do as the coordinator says, which it did at `told`. May be cancelled, as the newest instruction counts."""
        what = instruction.get("do")
        if what == contract.DO_RUN:
            await self._run_attempt(instruction, told)
        elif what == contract.DO_HOLD:
            if self.site is not None:
                self.site.starter.hear(str(instruction.get("learned") or ""))
            if self.attempt is not None:
                await self.stop(contract.END_STOPPED, float(instruction.get("grace_s") or 0))
            elif self.site is not None:
                # Our container was started anew; perhaps no attempt follows.
                await self.site.saving.commit_what_is_left()
        elif what == contract.DO_CHECK:
            await self.stop(contract.END_STOPPED, 0)
            await self._look(int(instruction.get("attempt") or 0))
        elif what == contract.DO_EXIT:
            await self.stop(contract.END_STOPPED, float(instruction.get("grace_s") or 0))
            await self.finish_while_it_moves()
            exit_ = Exit(int(instruction.get("exit_code") or 0), str(instruction.get("reason") or ""))
            if exit_.code == contract.EXIT_JOB_FAILED:
                await self._fail_for_good()
            await self.tell_trackers(exit_)
            return exit_
        return None

    @property
    def training(self) -> Optional[int]:
        """The attempt whose ranks are there; None: there are none."""
        return self.attempt.number if self.attempt is not None and self.attempt.alive else None

    def keep_up(self, instruction: contract.Instruction) -> None:
        """While this pod goes away: of the attempt that it is in it still hears, another it does not begin."""
        attempt = self.attempt
        is_ours = attempt is not None and instruction.get("attempt") == attempt.number and not attempt.unused
        if attempt is not None and is_ours and instruction.get("do") == contract.DO_RUN:
            attempt.update(instruction)

    async def _run_attempt(self, instruction: contract.Instruction, told: float) -> None:
        from trainjob.agent.attempts import beginning
        from trainjob.agent.attempts.attempt import Attempt

        number, current = int(instruction["attempt"]), self.attempt
        if current is not None and number < current.number:
            return
        if current is not None and number == current.number and not current.unused:
            current.update(instruction)
            return
        if current is not None:
            current.overtaken = True
            await current.stop(contract.END_STOPPED, 0)
            current.close()
        assert self.site is not None
        if instruction.get("spare_memory"):
            self.site.starter.spare_memory()
        began = beginning.Beginning(told)
        began.note(beginning.STOPPED)
        self.attempt = Attempt(self.site, self._peers, self._notes, instruction, began)
        self._warn(None)
        self._changed(False)
        self.attempt.begin()

    async def _look(self, after: int) -> None:
        """Whether storage holds the run's end record; nothing is started."""
        from trainjob.agent import finishing
        from trainjob.agent.control.look import look

        assert self.site is not None
        await finishing.settle(self.attempt, self.site.saving, STALL_S)
        found = await look(self.site.storage, self._config.job_uid, self._console.say)
        self._completed = self._completed or found.completed
        self.checked, self.found_run, self.found_shown = after, found.run, found.shown
        if found.trouble is not None:
            self._warn(found.trouble)
        self._changed(True)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self, verdict: str, grace_s: float) -> None:
        """End the ranks, if there are any."""
        if self.attempt is not None:
            self.attempt.overtaken = False
            await self.attempt.stop(verdict, grace_s)

    async def finish_while_it_moves(self) -> None:
        """Until all is stored and committed, or nothing has moved for STALL_S."""
        from trainjob.agent import finishing

        if self.site is None:
            return
        attempt, saving = self.attempt, self.site.saving
        self._still = self._still or Standstill()
        if not await finishing.while_it_moves(
            finishing.finish(attempt, saving), lambda: finishing.moved(attempt, saving), STALL_S, self._still
        ):
            self._console.say("uploads stand still: giving them up")

    async def _fail_for_good(self) -> None:
        from trainjob.agent import finishing

        attempt = self.attempt
        # Without an attempt this agent was started to look whether the run is complete: all others are gone.
        run = self.found_run if attempt is None else attempt.run if attempt.leads_or_has_no_leader else None
        if run is not None and self.site is not None and self.site.storage is not None:
            await finishing.give_up_validations(run, self.site.storage, self._console.say)

    async def tell_trackers(self, exit_: Exit) -> None:
        """If the job is over, not just this worker."""
        if self.site is not None and exit_.code in (contract.EXIT_OK, contract.EXIT_JOB_FAILED):
            await self.site.tracking.end(None if exit_.code == contract.EXIT_OK else exit_.reason or "the job failed")

    async def finish(self) -> None:
        """Until all is stored and committed, as long as it takes."""
        from trainjob.agent import finishing

        if self.site is not None:
            await finishing.finish(self.attempt, self.site.saving)

    async def end(self) -> None:
        """Kill what lives, and leave the attempt; the storage child goes on until `close`."""
        self._background.cancel()
        if self.attempt is not None:
            try:
                await within(self.attempt.stop(contract.END_STOPPED, 0), STOP_S)
            except (Stuck, OSError, RuntimeError, asyncio.TimeoutError) as error:  # RuntimeError: no thread to be had
                self._console.say(explain(error))
            self.attempt.close()

    async def close(self) -> None:
        """Nothing stays: no process, no socket."""
        self._peers.close()
        if self.site is not None:
            self.site.saving.close()
            self.site.starter.close()
            await self.site.tracking.close(LEAVE_S)
            if self.site.storage is not None:
                await self.site.storage.close(CLOSE_S)
            shutil.rmtree(self.site.socket_folder, ignore_errors=True)

    # -- others --------------------------------------------------------------------------------------------------------

    def forward(self, number: int) -> None:
        """A signal that the container got, to the ranks."""
        if self.attempt is not None:
            self.attempt.forward(number)

    def _uploads_changed(self, drained: bool) -> None:
        """Only once the ranks have ended does anybody wait for the uploads; while they run each checkpoint drains
        them.
        """
        self._changed(drained and (self.attempt is None or not self.attempt.alive))

    def _complain(self, text: str, lasting: bool) -> None:
        """Of who calls us, or whom we call."""
        self._console.say(text)
        if lasting:
            self._warn(text)

    def _serve_file(self, connection: FrameConnection, message: wire.Message) -> None:
        from trainjob.agent.restoring import serving
        from trainjob.agent.wire.for_files import Refused

        if self.site is None:
            serving.say(connection, Refused("nothing lies here"))
            return
        self._files = self._files or serving.FileServer(self.site.saving)
        self._background.spawn(self._files.give(connection, message))
