"""The agent's side of the rank socket for session tests: one server that holds N ranks' collectives and answers them.

A real Unix socket and the real frames, but one "agent" for all ranks, in this process, without staging, stores or
peers: a report's directory is copied to `<root>/checkpoints/<id>` with the ranks' states beside it. What ranks sent is
kept for assertions. `with FakeAgent(tmp_path, world_size=2) as agent: ... agent.environ(rank)`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.patience import HANG_S
from trainjob_api import contract, wire
from trainjob_api.rank_messages import FROM_RANK

WAIT_S = HANG_S / 2


def plain(word: Any) -> Any:
    """A message as plain data, with everything that was left out."""
    if hasattr(word, "_asdict"):
        return {name: plain(value) for name, value in word._asdict().items() if name != "blob"}
    return [plain(item) for item in word] if isinstance(word, tuple) else word


@dataclass
class _Call:
    """One collective: what the ranks that arrived sent."""

    arrived: dict[int, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    reply: tuple[dict[str, Any], bytes] | None = None


class FakeAgent:
    """Serves `world_size` ranks; `resume_from` is the checkpoint folder that OP_RESTORE answers with."""

    def __init__(self, root: Path, world_size: int, *, attempt: int = 1, resume_from: Path | None = None) -> None:
        self.root = root
        self.world_size = world_size
        self.attempt = attempt
        self.resume_from = resume_from
        self.fetched: list[list[str] | None] = []
        self.hellos: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.begun: list[dict[str, Any]] = []
        self.farewells: list[dict[str, Any]] = []
        self.rank_errors: list[dict[str, Any]] = []
        self.reports: list[dict[int, dict[str, Any]]] = []
        self.gone: set[int] = set()
        self.refuse: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        # Socket paths are bounded to 108 bytes: pytest's folders are longer.
        self._folder = tempfile.mkdtemp(prefix="tjfake-")
        self.path = os.path.join(self._folder, "s")

    def __enter__(self) -> FakeAgent:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the threads that read; close alone would leave them. What was sent before is read to its end:
        # ranks that have ended have told their errors.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._join(self._threads[:1])
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._changed:
            self.gone.update(range(self.world_size))
            self._changed.notify_all()
        self._join(self._threads)
        for sock in [self._listener, *self._sockets]:
            sock.close()
        shutil.rmtree(self._folder)

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), f"{thread.name} did not end"

    def environ(self, rank: int) -> dict[str, str]:
        """What the agent puts into this rank's environment."""
        return {
            contract.ENV_AGENT_SOCKET: self.path,
            contract.ENV_RANK: str(rank),
            contract.ENV_LOCAL_RANK: str(rank),
            contract.ENV_WORLD_SIZE: str(self.world_size),
            contract.ENV_LOCAL_WORLD_SIZE: str(self.world_size),
            contract.ENV_NODE_RANK: "0",
            contract.ENV_ATTEMPT: str(self.attempt),
            contract.ENV_JOB: "digits",
            contract.ENV_NAMESPACE: "default",
            contract.ENV_RUN: "1",
            contract.ENV_STORAGE: str(self.root),
        }

    def wait_for(self, what: str, ready: Any) -> None:
        """Wait until `ready()` holds; for messages that have no answer."""
        with self._changed:
            assert self._changed.wait_for(ready, WAIT_S), f"nothing came within {WAIT_S} s: {what}"

    def drop_connections(self) -> None:
        """Die as an agent does: all connections closed."""
        for sock in self._sockets:
            sock.shutdown(socket.SHUT_RDWR)

    def checkpoint_path(self, checkpoint_id: str) -> Path:
        return self.root / "checkpoints" / checkpoint_id

    def _start(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=f"fake-agent-{len(self._threads)}")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        rank = -1
        try:
            while True:
                message, blob = wire.receive(sock)
                message = {"op": message["op"], **plain(FROM_RANK.parse(message, blob))}
                if message["op"] == contract.OP_HELLO:
                    rank = message["rank"]
                if message.get("has_state"):
                    wire.send(sock, {"op": contract.OP_ASK_STATE, "n": message["n"]})
                    _, blob = wire.receive(sock)
                answer = self._take(rank, message, blob)
                if answer is not None:
                    wire.send(sock, *answer)
        except OSError:
            with self._changed:
                self.gone.add(rank)
                self._changed.notify_all()

    def _take(self, rank: int, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes] | None:
        if message["op"] == contract.OP_COLLECTIVE:
            return self._collective(rank, message, blob)
        if message["op"] == contract.OP_RESTORE:
            return self._restore(rank, message["id"])
        if message["op"] == contract.OP_FETCH:
            return self._fetch(message)
        with self._changed:
            if message["op"] == contract.OP_HELLO:
                self.hellos.append(message)
                self.gone.discard(rank)
            elif message["op"] == contract.OP_LOG:
                self.rows += [{"rank": rank, **row} for row in message["rows"]]
            elif message["op"] == contract.OP_BEGUN:
                self.begun.append({"rank": rank, **message})
            elif message["op"] == contract.OP_ERROR:
                self.rank_errors.append({"rank": rank, **message})
            elif message["op"] in (contract.OP_LEAVING, contract.OP_FAREWELL):
                self.farewells.append({"rank": rank, **message})
            else:
                raise AssertionError(f"unknown operation {message}")
            self._changed.notify_all()
        return None

    def _restore(self, rank: int, wanted: str | None) -> tuple[dict[str, Any], bytes]:
        path = self._folder_of(wanted)
        found: dict[str, Any] | None = None
        if path is not None:
            states = [path / ".trainjob" / f"rank-{owner}.state" for owner in (rank, 0)]
            state = next((str(state) for state in states if state.exists()), None)
            found = {
                "id": path.name,
                "listing": str(self._listing(path)),
                "state": state,
                "step": 7,
                "epoch": 1,
                "metrics": {"loss": 0.5},
                "world_size": self.world_size,
            }
        return {"op": contract.OP_RESTORED, "checkpoint": found}, b""

    def _fetch(self, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._changed:
            self.fetched.append(message["paths"])
        return {"op": contract.OP_FETCHED, "folder": str(self._folder_of(message["id"]))}, b""

    def _folder_of(self, id_: str | None) -> Path | None:
        resumed = self.resume_from
        return resumed if id_ is None or (resumed is not None and id_ == resumed.name) else self.checkpoint_path(id_)

    def _listing(self, path: Path) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        listing = self.root / f"{path.name}.files.json"
        names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
        aside = self.root / f"{path.name}.{threading.get_ident()}.new"
        aside.write_text(json.dumps(names))
        aside.replace(listing)  # whole at once: another rank may be reading it
        return listing

    def _collective(self, rank: int, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        n = message["n"]
        with self._changed:
            call = self._calls.setdefault(n, _Call())
            call.arrived[rank] = (message, blob)
            if self.refuse is not None:
                call.reply = ({"op": contract.OP_FAILED, "n": n, **self.refuse}, b"")
            elif len(call.arrived) == self.world_size:
                call.reply = self._settle(n, call)
            self._changed.notify_all()
            timeout_s = message["timeout_s"] or WAIT_S
            self._changed.wait_for(lambda: call.reply is not None or self._missing_gone(call), timeout_s)
            if call.reply is None:
                missing = sorted(set(range(self.world_size)) - set(call.arrived))
                reason = contract.FAIL_RANK_GONE if self._missing_gone(call) else contract.FAIL_TIMEOUT
                call.reply = (
                    {
                        "op": contract.OP_FAILED,
                        "n": n,
                        "reason": reason,
                        "message": f"ranks {missing}: {reason} in {message['kind']}",
                        "ranks": missing,
                    },
                    b"",
                )
            return call.reply

    def _missing_gone(self, call: _Call) -> bool:
        return bool(self.gone - set(call.arrived))

    def _settle(self, n: int, call: _Call) -> tuple[dict[str, Any], bytes]:
        kinds = {message["kind"] for message, _ in call.arrived.values()}
        if len(kinds) > 1:
            text = ", ".join(
                f"rank {rank} called {message['kind']}" for rank, (message, _) in sorted(call.arrived.items())
            )
            return {
                "op": contract.OP_FAILED,
                "n": n,
                "reason": contract.FAIL_MISMATCH,
                "message": text,
                "ranks": sorted(call.arrived),
            }, b""
        first, blob = call.arrived[0]
        reply: dict[str, Any] = {
            "op": contract.OP_RELEASED,
            "n": n,
            "stop": bool(first.get("stop")),
            "checkpoint": None,
            "warnings": list(self.warnings),
        }
        if first["kind"] != contract.KIND_REPORT:
            return reply, blob if first["kind"] == contract.KIND_BROADCAST else b""
        self.reports.append({rank: message for rank, (message, _) in call.arrived.items()})
        offers = {rank: message["checkpoint"] for rank, (message, _) in call.arrived.items() if message["checkpoint"]}
        if offers:
            checkpoint_id = f"1-{self.attempt}-{len(self.reports)}"
            self._keep(checkpoint_id, offers, call)
            reply["checkpoint"] = {"id": checkpoint_id, "uri": None, "level": contract.STAGED}
        return reply, b""

    def _keep(self, checkpoint_id: str, offers: dict[int, dict[str, Any]], call: _Call) -> None:
        target = self.checkpoint_path(checkpoint_id)
        states = target / ".trainjob"
        states.mkdir(parents=True)
        for offer in reversed(list(dict(sorted(offers.items())).values())):
            shutil.copytree(offer["path"], target, dirs_exist_ok=True)
            if offer["delete"]:
                shutil.rmtree(offer["path"])
        for rank, (_, blob) in call.arrived.items():
            if blob:
                (states / f"rank-{rank}.state").write_bytes(blob)
