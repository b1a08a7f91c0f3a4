"""This process as a rank: from the stand-in's place to the end of the job, and back to what it was before.

Called by `fit` and `script`. Under torchrun each of its processes is a rank of one job, which rank 0's process starts;
otherwise there is one rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainjob import session
from trainjob.launch.errors import LaunchError
from trainjob.launch.in_process.companion import Order
from trainjob.launch.in_process.hearing import Hearing
from trainjob.launch.in_process.places import Place, meeting_folder
from trainjob.launch.in_process.stand_in import socket_path
from trainjob.launch.job import LOCAL_MODULES_FIRST
from trainjob.launch.local import checks, environment, lock
from trainjob.launch.local.interrupts import PATIENCE_S, Interrupts, interrupts
from trainjob.launch.local.registry.recorder import ENV_COMMAND
from trainjob.screen.asked import Asker
from trainjob.screen.display import Display
from trainjob.session import calls, link, rank_state
from trainjob.session.errors import AgentLostError, TrainJobError
from trainjob_api import contract, defaults
from trainjob_api.v1alpha1 import TrainJob

_POLL_S = 0.1
_LOST_S = 5.0
"""So long a stand-in may outlive its agent."""
_RESTART_S = 60.0
"""How long the job of a torchrun's processes that were just restarted may take to end."""
_GIVEN = (
    contract.ENV_AGENT_SOCKET,
    contract.ENV_ATTEMPT,
    contract.ENV_BACKEND,
    contract.ENV_JOB,
    contract.ENV_NAMESPACE,
    contract.ENV_RENDEZVOUS_TIMEOUT_S,
    contract.ENV_RUN,
    contract.ENV_STACK_FOLDER,
    contract.ENV_STORAGE,
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
)
"""Of the stand-in's variables those that the session reads. Not the pod's identity: processes with it end with it."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How the job ended."""

    job: TrainJob
    interrupted: bool


def exit_code(error: BaseException | None) -> int:
    """Of a process that ends with this, as Python has it."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else 0 if error.code is None else 1


class Guest:
    """One job in this process. `begin` makes it a rank, `close` takes that back; both in the same thread."""

    _made = 0

    def __init__(
        self,
        job: TrainJob,
        where: Place,
        *,
        show: bool = True,
        display: Display | None = None,
        asker: Asker = Asker.PYTHON,
    ) -> None:
        """`show`: notes and the agent's words on standard error; with a `display` it is told them instead, and the
        job's states, from another thread. `asker`: in whose words they are.
        """
        Guest._made += 1
        self._asker = asker
        self._where, self._show, self._display = where, show, display
        self._folder = meeting_folder(f"{where.key}-{Guest._made}" if where.torchrun else "")
        self._job = _adapted(job, where, self._folder)
        self._companion: subprocess.Popen[bytes] | None = None
        self._hearing: Hearing | None = None
        self._stand_in: socket.socket | None = None
        self._asked: list[float] = []
        """When the companion was told to stop."""
        self._waits_s = _LOST_S
        """So long its stand-in may still outlive its agent."""
        self._before: dict[str, str | None] = {}
        self._storage: str | None = None
        """The job's folder, as rank 0's process named the job: one without a name has another here."""

    def begin(self) -> None:
        """Returns once this process is the rank. Raises LaunchError or InvalidTrainJob."""
        with contextlib.ExitStack() as unless_begun:
            unless_begun.callback(self._give_up)
            if self._where.rank == 0:
                base = environment.with_packages(environment.inherited(os.environ))
                checks.check(self._job, base, os.getcwd(), self._asker)
                self._companion = _started(self._order(), base)
                assert self._companion.stdout is not None
                self._hearing = Hearing(self._companion.stdout, self._display)
            given = self._place_from_stand_in()
            self._storage = given.get(contract.ENV_STORAGE) or None
            self._enter(given)
            link.boot()
            unless_begun.pop_all()

    def close(self, error: BaseException | None) -> End | None:
        """The loop ended, with that: wait until all is stored and the job has ended. None on other ranks than 0.

        An exception becomes the job's failure; KeyboardInterrupt stops the job, which can go on later; SystemExit
        counts as its exit code says. Ctrl-C and SIGTERM meanwhile ask the job to hurry, and do no more.
        """
        code = exit_code(error)
        with self._interrupts() as signals:
            try:
                signals.let_through()
                tells = not isinstance(error, SystemExit | KeyboardInterrupt) and not self.tells_of_its_end(error)
                if error is not None and tells:
                    link.tell_agent(contract.END_EXCEPTION, error)
                self._leave()
                signals.held = True
                if isinstance(error, KeyboardInterrupt):
                    self._ask_to_stop()
                elif self._stand_in is not None:
                    with contextlib.suppress(OSError):  # it was stopped
                        self._stand_in.sendall(json.dumps({"exit_code": code}).encode() + b"\n")
                return self._ended()
            finally:
                signals.held = True
                self._give_up()

    def tells_of_its_end(self, error: BaseException | None) -> bool:
        """Whether that is but the answer to a call of a rank that its agent has ended (`tj stop`, say), or was raised
        from it: how its job ended tells more.
        """
        ours = _ours(error)
        if ours is None or self._stand_in is None:
            return False
        poll = select.poll()  # select() has no room for the numbers of a process that has many open
        poll.register(self._stand_in, select.POLLIN)
        # All that it had to say was said at the beginning. An agent that dies closes its connections a moment before
        # its stand-ins end.
        waits_s = 0.0
        if isinstance(ours, AgentLostError):
            waits_s, self._waits_s = self._waits_s, 0.0
        return bool(poll.poll(waits_s * 1000))

    def _interrupts(self) -> contextlib.AbstractContextManager[Interrupts]:
        """Other ranks than 0 leave nothing that one could spoil."""
        return interrupts() if self._where.rank == 0 else contextlib.nullcontext(Interrupts())

    # -- the companion and the stand-in --------------------------------------------------------------------------------

    def _order(self) -> Order:
        patience_s = _RESTART_S if self._where.torchrun else 0.0
        tell = self._display is not None
        order: Order = {
            "job": self._job.to_json(),
            "show": self._show,
            "tell": tell,
            "patience_s": patience_s,
            "asker": self._asker.value,
            "folder": self._folder,
        }
        return order

    def _place_from_stand_in(self) -> dict[str, str]:
        """The environment of this rank, once the agent has started it."""
        path = socket_path(self._folder, self._where.rank)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.bind(path)
            listening.listen(1)
            while not select.select([listening], [], [], _POLL_S)[0]:
                if self._companion is not None and self._companion.poll() is not None:
                    raise LaunchError(self._why_not())
            self._stand_in, _ = listening.accept()
        os.unlink(path)
        with self._stand_in.makefile("rb") as stream:
            line = stream.readline()
        if not line.endswith(b"\n"):
            raise LaunchError("the stand-in of this rank ended at once; the lines above say why")
        found: dict[str, str] = json.loads(line)
        return found

    def _why_not(self) -> str:
        answer = self._answer()
        if "refused" in answer:
            return str(answer["refused"])
        status = TrainJob.model_validate(answer["job"]).status if "job" in answer else None
        failed = status.held("Failed") if status else None
        return failed.message if failed else "the job ended before its loop began; the lines above say why"

    def _ended(self) -> End | None:
        if self._companion is None:
            # Rank 0's process waits for the job; the name's lock is free when nobody works for it any more.
            while self._storage is not None and lock.held(self._storage):
                time.sleep(_POLL_S)
            return None
        answer = self._answer()
        if "job" not in answer:
            raise LaunchError(
                f"the control process of the job ended without a word (exit code {self._companion.returncode}); what "
                "was saved is on storage"
            )
        return End(job=TrainJob.model_validate(answer["job"]), interrupted=bool(answer["interrupted"]))

    def _answer(self) -> dict[str, object]:
        """The companion's last line, once it has ended; Ctrl-C meanwhile asks it to hurry."""
        assert self._companion is not None and self._hearing is not None
        said = self._hearing.answer(self._ask_to_stop)  # before its end is waited for: a pipe may not hold its answer
        self._companion.wait()
        return said

    def _ask_to_stop(self) -> None:
        """A companion that stands still, though it was asked twice, is ended: its agents see to what is stored."""
        if self._companion is None or self._companion.stdin is None:
            return
        self._asked.append(time.monotonic())
        if len(self._asked) > 2 and self._asked[-1] - self._asked[0] >= PATIENCE_S:
            self._companion.kill()
        with contextlib.suppress(OSError):
            self._companion.stdin.write(b"s")
            self._companion.stdin.flush()

    def _give_up(self) -> None:
        """Whatever is left of it goes; after a clean end there is nothing."""
        if self._stand_in is not None:
            self._stand_in.close()
        with self._interrupts(), contextlib.ExitStack() as last:
            if self._where.rank == 0:
                last.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if self._companion is not None and self._hearing is not None:
                last.callback(self._hearing.close)
                last.callback(self._hang_up)
                if self._companion.poll() is None:
                    self._ask_to_stop()
                    self._answer()

    def _hang_up(self) -> None:
        assert self._companion is not None and self._companion.stdin is not None
        with contextlib.suppress(OSError):
            self._companion.stdin.close()

    # -- this process --------------------------------------------------------------------------------------------------

    def _enter(self, given: Mapping[str, str]) -> None:
        names = _GIVEN if self._where.torchrun else (*_GIVEN, *contract.RANK_PLACE)
        wanted = {name: given[name] for name in names if name in given}
        wanted[contract.ENV_RANK_PID] = str(os.getpid())
        self._before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)

    def _leave(self) -> None:
        """This process is no rank any more, and may become one again."""
        link.disconnect()
        calls.reset()
        rank_state.clear()
        session.reset()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _ours(error: BaseException | None) -> TrainJobError | None:
    """The library's own error that this is, or was raised from."""
    seen: list[BaseException] = []
    while error is not None and error not in seen and not isinstance(error, TrainJobError):
        seen.append(error)
        error = error.__cause__
    return error if isinstance(error, TrainJobError) else None


def _adapted(job: TrainJob, where: Place, folder: str) -> TrainJob:
    """The job with stand-ins for ranks. A loop inside somebody's process cannot be started again: no restarts."""
    document = job.to_json()
    spec = document["spec"]
    spec["workers"], spec["processesPerWorker"] = 1, where.world_size
    spec.setdefault("failurePolicy", {})["maxFailures"] = 0
    _, container = defaults.trainer_container(job.spec)
    name = container["name"]
    words = [sys.executable, *LOCAL_MODULES_FIRST, "-m", contract.STAND_IN_MODULE, folder]
    trainer = {"name": name, "image": container.get("image"), "command": [word.replace("$", "$$") for word in words]}
    spec["template"] = {"spec": {"containers": [trainer]}}
    return TrainJob.model_validate(document)


def _started(order: Order, base: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, *LOCAL_MODULES_FIRST, "-m", "trainjob.launch.in_process.companion"]
    # A session of its own: Ctrl-C at this terminal is this process's affair.
    companion = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**base, ENV_COMMAND: json.dumps(sys.orig_argv)},
        start_new_session=True,
    )
    assert companion.stdin is not None
    with contextlib.suppress(OSError):  # it has ended already: it is asked why
        companion.stdin.write(json.dumps(order).encode() + b"\n")
        companion.stdin.flush()
    return companion
