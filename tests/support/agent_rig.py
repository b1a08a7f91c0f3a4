"""Agents as real processes under a puppet coordinator: tests say what each agent is told, and see everything that it
reports.

with Rig(tmp_path, script=SCRIPT) as rig:
    rig.run(1)
    rig.wait(lambda: rig.ended(0))
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.patience import HANG_S
from trainjob_api import contract

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.01
HOLD_POLL_S = 5.0


class Coordinator:
    """Answers POST /v1/sync with what the test wants each slot to do; remembers every report."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.reports: dict[int, dict[str, Any]] = {}
        self.log: list[dict[str, Any]] = []
        self.instructions: dict[int, dict[str, Any]] = {}
        self._dead: list[dict[str, Any]] = []
        """The last reports of agents that are forgotten."""
        self.headers: dict[int, dict[str, str]] = {}
        self.transition = 1
        self._server: ThreadingHTTPServer | None = None
        self._held: socket.socket | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        """Listen (again, on the same port)."""
        coordinator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                coordinator.headers[body["slot"]] = dict(self.headers.items())
                answer = json.dumps(coordinator.answer(body)).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # agents are killed in the middle of requests

        self._let_go()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """No coordinator: open polls end without an answer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            # Nobody listens there, and nobody else gets the port until it starts again.
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind(("127.0.0.1", self.port))
            with self.changed:
                self.changed.notify_all()

    def close(self) -> None:
        """The end."""
        self.stop()
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def tell(self, slot: int, **instruction: Any) -> None:
        """From now on this slot is to do that."""
        with self.changed:
            self.instructions[slot] = instruction
            self.changed.notify_all()

    def forget(self, *slots: int) -> None:
        """Their agents are dead: what is still under way of their reports is no word of those that come after them."""
        with self.changed:
            self._dead += [self.reports.pop(slot) for slot in slots]

    def _is_dead(self, report: dict[str, Any]) -> bool:
        return any(
            (report["slot"], report["address"]) == (dead["slot"], dead["address"]) and report["seq"] >= dead["seq"]
            for dead in self._dead
        )

    def answer(self, report: dict[str, Any]) -> dict[str, Any]:
        """Hold the poll until there is something to say."""
        slot, seq, server = report["slot"], (report["boot"], report["seq"]), self._server
        with self.changed:
            if self._is_dead(report):
                raise ConnectionAbortedError("nobody waits for the answer")
            last = self.reports.get(slot)
            if last is None or (last["boot"], last["seq"]) < seq:
                self.reports[slot] = report
                self.log.append(report)
                self.changed.notify_all()
            deadline = time.monotonic() + HOLD_POLL_S
            while (
                self._server is server
                and self.reports.get(slot) is report
                and report["acknowledged"] == self._word(slot)
                and not report["last"]
                and time.monotonic() < deadline
            ):
                self.changed.wait(deadline - time.monotonic())
            if self._server is not server:
                raise ConnectionAbortedError("the coordinator is gone")
            return {"transition": self.transition, "instruction": self._word(slot)}

    def _word(self, slot: int) -> dict[str, Any]:
        return self.instructions.get(slot, {"do": contract.DO_WAIT})


class AgentProcess:
    """One agent."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, parent: int) -> None:
        self.process = process
        self.output = output
        self.parent = parent

    @property
    def text(self) -> str:
        """What it wrote so far."""
        return self.output.read_text("utf-8", "replace")


class Rig:
    """N agents of one job in temporary folders."""

    def __init__(
        self,
        folder: Path,
        *,
        script: str | None = None,
        agents: int = 2,
        processes: int = 1,
        storage: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        command: Sequence[str] | None = None,
        entry: Sequence[str] = ("-m", "trainjob.agent"),
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        self._program = [python, *entry]
        self.count = agents
        self.processes = processes
        self.coordinator = Coordinator()
        self.agents: dict[int, AgentProcess] = {}
        self.work = folder / "job"
        self.work.mkdir(parents=True, exist_ok=True)
        if script is not None:
            (self.work / "train.py").write_text(script)
        self.command = list(command) if command is not None else [sys.executable, "train.py"]
        self.members: list[int] = []
        """The slots of the attempt that was told last."""
        self.storage = None if storage is None else str(storage)
        self._env = dict(env or {})
        self._spec = {
            "processes_per_worker": processes,
            "rendezvous_port": 29500,
            "storage": self.storage,
            "resume_from": "auto",
            "keep": None,
            "score_attribute": None,
            "score_order": "max",
            "prefork": contract.PREFORK_DEFAULT,
            "recycle": True,
            **(spec or {}),
        }

    def __enter__(self) -> Rig:
        for slot in range(self.count):
            self.start(slot)
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents.values():
            if agent.process.poll() is None:
                agent.process.kill()
            agent.process.wait()
            if agent.parent >= 0:
                os.close(agent.parent)
        self.coordinator.close()
        # Ranks go with their agent; what they started may sleep for minutes.
        for pid in processes_with(*(f"{contract.ENV_POD_UID}={self.pod_uid(slot)}" for slot in self.agents)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # What the launcher does for agents that were killed.
        for slot in self.agents:
            for folder in glob.glob(f"/tmp/trainjob-{self.pod_uid(slot)[:8]}-*"):
                shutil.rmtree(folder, ignore_errors=True)

    # -- agents --------------------------------------------------------------------------------------------------------

    def start(self, slot: int, environment: Mapping[str, str] | None = None) -> AgentProcess:
        """Start the agent of a slot (again: its container was restarted)."""
        reading, writing = os.pipe()
        env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINJOB_")}
        env.update(
            {
                "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT / "worker-image")]),
                contract.ENV_NAMESPACE: "default",
                contract.ENV_JOB: "digits",
                contract.ENV_JOB_UID: "uid-1",
                contract.ENV_SLOT: str(slot),
                contract.ENV_POD_NAME: f"digits-{slot}",
                contract.ENV_POD_UID: self.pod_uid(slot),
                contract.ENV_POD_ADDRESS: "127.0.0.1",
                contract.ENV_NODE_NAME: "here",
                contract.ENV_COORDINATOR: f"http://127.0.0.1:{self.coordinator.port}",
                contract.ENV_WORK_DIR: str(self.work_dir(slot)),
                contract.ENV_AGENT_SPEC: json.dumps(self._spec),
                contract.ENV_PARENT_FD: str(reading),
                contract.ENV_MASTER_PORT_ANY: "1",
                **self._env,
                **(environment or {}),
            }
        )
        output = self.folder / f"agent-{slot}.out"
        with output.open("ab") as file:
            process = subprocess.Popen(
                [*self._program, "--", *self.command],
                cwd=self.work,
                env=env,
                stdout=file,
                stderr=file,
                pass_fds=[reading],
                start_new_session=True,
            )
        os.close(reading)
        older = self.agents.get(slot)
        if older is not None:
            os.close(older.parent)
        self.agents[slot] = AgentProcess(process, output, writing)
        return self.agents[slot]

    def pod_uid(self, slot: int) -> str:
        """As on a cluster, no two pods share one, nor its first eight characters."""
        return f"{zlib.crc32(f'{self.folder}/{slot}'.encode()):08x}-{slot}"

    def work_dir(self, slot: int) -> Path:
        """A pod's own volume."""
        return self.folder / f"pod-{slot}"

    def text(self, slot: int) -> str:
        """An agent's output."""
        return self.agents[slot].text

    def exit_code(self, slot: int, timeout_s: float = HANG_S) -> int:
        """Wait for an agent's end."""
        return self.agents[slot].process.wait(timeout_s)

    # -- instructions --------------------------------------------------------------------------------------------------

    def run(self, attempt: int, members: Sequence[int] | None = None, **more: Any) -> None:
        """Tell members to run an attempt, once all have reported. `more` of the instruction."""
        slots = list(range(self.count)) if members is None else list(members)
        self.wait(lambda: all(s in self.coordinator.reports for s in slots), "all agents have reported")
        for index, slot in enumerate(slots):
            self.run_one(slot, attempt, index, slots, **more)

    def run_one(self, slot: int, attempt: int, index: int, slots: Sequence[int], **more: Any) -> None:
        """Tell one of them; `more` of the instruction, or in place of what it says."""
        self.members = list(slots)
        instruction = {
            "do": contract.DO_RUN,
            "attempt": attempt,
            "index": index,
            "workers": len(slots),
            "processes": self.processes,
            "leader": self.coordinator.reports[slots[0]]["address"],
            "secret": f"secret of attempt {attempt}",
            "reason": "test",
        }
        self.coordinator.tell(slot, **{**instruction, **more})

    def hold(self, grace_s: float = 0) -> None:
        """Tell all to stop their ranks."""
        for slot in self.agents:
            self.coordinator.tell(slot, do=contract.DO_HOLD, grace_s=grace_s)

    def exit(self, code: int = 0) -> None:
        """Tell all to end."""
        for slot in self.agents:
            self.coordinator.tell(slot, do=contract.DO_EXIT, exit_code=code)

    # -- observations --------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str = "", timeout_s: float = HANG_S) -> Any:
        """Until `condition()` is true; its value. Raises AssertionError with all that is known."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(POLL_S)
        raise AssertionError(f"not within {timeout_s} s: {what}\n{self.everything()}")

    def everything(self) -> str:
        """For a failed wait."""
        outputs = "\n".join(f"--- agent {slot} (exit {a.process.poll()})\n{a.text}" for slot, a in self.agents.items())
        return f"{json.dumps(self.coordinator.reports, indent=1)}\n{outputs}"

    def report(self, slot: int) -> dict[str, Any]:
        """The newest report of an agent."""
        return self.coordinator.reports.get(slot, {})

    def ranks(self, attempt: int | None = None) -> dict[int, dict[str, Any]]:
        """All ranks by number, of reports about this attempt."""
        reports = [r for r in self.coordinator.reports.values() if attempt is None or r["attempt"] == attempt]
        return {rank["rank"]: rank for r in reports for rank in r["ranks"]}

    def rank(self, number: int) -> dict[str, Any]:
        """One rank."""
        return self.ranks().get(number, {})

    def ended(self, *numbers: int, attempt: int | None = None) -> bool:
        """Whether these ranks have ended."""
        ranks = self.ranks(attempt)
        return all(ranks.get(n, {}).get("state") == contract.RANK_ENDED for n in numbers)

    def running(self, *numbers: int, attempt: int | None = None) -> bool:
        """Whether these ranks have said hello."""
        ranks = self.ranks(attempt)
        return all(ranks.get(n, {}).get("state") == contract.RANK_RUNNING for n in numbers)

    def first(self, says: Callable[[dict[str, Any]], Any]) -> tuple[int, Any] | None:
        """The first report of an agent of which this is true, as its place among all, and what was found: the next
        report may come before a test looks at the newest.
        """
        return next(((at, found) for at, report in enumerate(self.coordinator.log) if (found := says(report))), None)

    def first_state(self, number: int, state: str, key: str = "rank") -> tuple[int, Any] | None:
        """The same of a rank in this state, as soon as it has that field."""

        def says(report: dict[str, Any]) -> Any:
            ranks = (rank for rank in report["ranks"] if (rank["rank"], rank["state"]) == (number, state))
            return next((rank for rank in ranks if rank.get(key) is not None), None)

        return self.first(says)

    def completed(self) -> bool:
        """Whether all members say so: the word of one may overtake what another has to tell of its ranks, and what
        rank 0's agent alone knows.
        """
        reports = self.coordinator.reports
        return bool(self.members) and all(slot in reports and reports[slot]["completed"] for slot in self.members)

    def some_completed(self) -> bool:
        """Whether any agent says so."""
        return any(report["completed"] for report in self.coordinator.reports.values())

    def pid_of(self, number: int, attempt: int | None = None) -> int:
        """Of a rank's process, as soon as its agent has told it: what the rank prints may be here before."""
        return int(self.wait(lambda: self.ranks(attempt).get(number, {}).get("pid"), f"the pid of rank {number}"))

    def kill_rank(self, number: int, how: int = signal.SIGKILL) -> None:
        """A signal to a rank's process."""
        os.kill(self.pid_of(number), how)

    def wait_text(self, slot: int, text: str, timeout_s: float = HANG_S) -> None:
        """Until an agent's output has this."""
        self.wait(lambda: text in self.text(slot), f"{text!r} in the output of agent {slot}", timeout_s)


def processes_with(*markers: str) -> list[int]:
    """Living processes whose environment has one of these texts; warm parents, which are their agents' own, left
    out.
    """
    wanted = [marker.encode() for marker in markers]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
                if not any(each in environ for each in wanted):
                    continue
                is_parent = f"\0{contract.WARM}\0".encode() in Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if state != b"Z" and not is_parent and int(name) != os.getpid():
                found.append(int(name))
    return found
