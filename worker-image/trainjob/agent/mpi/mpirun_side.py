"""On worker 0: runs mpirun, and hands what it wants to start elsewhere to the workers that it is for.

Ends as mpirun does, unless mpirun ended well without a word to some worker: then it did not train there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Set

from trainjob.agent.background import within
from trainjob.agent.mpi import places, proof
from trainjob.agent.wire import handshake
from trainjob.session import link, tie
from trainjob_api import contract

_HELLO_S = 10.0
_LIMIT_S = 300.0
"""For a worker to come for its command: the agents start all sides at the same time, and end all where one dies."""
_LEAVE_S = 10.0
_VERSION_S = 60.0
_NOTHING: Dict[str, Any] = {"over": True}


class Handover:
    """What each worker is to start, and how that ended there."""

    def __init__(self, key: str, attempt: int, workers: int, port: int) -> None:
        self._key, self._attempt, self._workers, self._port = key, attempt, workers, port
        loop = asyncio.get_running_loop()
        self._orders: Dict[int, asyncio.Future[Dict[str, Any]]] = {
            index: loop.create_future() for index in range(1, workers)
        }
        self._ends: Dict[int, asyncio.Future[int]] = {index: loop.create_future() for index in range(1, workers)}
        self.came = {index: asyncio.Event() for index in range(1, workers)}
        self._talks: Set[asyncio.Task[None]] = set()

    async def worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of `daemon_side`, or of a stranger."""
        index = None
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            index = await within(self._index_of(reader, writer), _HELLO_S)
        if index is not None and index in self.came and not self.came[index].is_set():
            self.came[index].set()
            task = asyncio.ensure_future(self._serve(index, reader, writer))
            self._talks.add(task)
            await task
        writer.close()

    async def _index_of(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Optional[int]:
        hello = handshake.parse(proof.decoded(await reader.readline()))
        own = handshake.nonce()
        writer.write(proof.encoded(handshake.challenge(self._key, hello, own)))
        proven = handshake.is_proven(self._key, hello, own, proof.decoded(await reader.readline()))
        return hello.index if proven and hello.attempt == self._attempt else None

    async def _serve(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = await self._orders[index]
        code = 255
        with contextlib.suppress(OSError, ValueError):
            writer.write(proof.encoded(order))
            await writer.drain()
            if order is not _NOTHING:
                code = int(proof.decoded(await reader.readline())["code"])
        self._ends[index].set_result(code)

    async def shell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of `remote_shell`."""
        answer: Dict[str, Any] = {}
        try:
            asked = proof.decoded(await reader.readline())
            index = places.index_of(str(asked["host"]), self._workers)
            if not self._orders[index].done():
                self._orders[index].set_result({"command": str(asked["command"]), "port": self._port})
            await self._reached(index)
            answer = {"code": await self._ends[index]}
        except (OSError, ValueError, KeyError) as error:
            answer = {"code": 255, "error": str(error)}
        with contextlib.suppress(OSError):
            writer.write(proof.encoded(answer))
            await writer.drain()
        writer.close()

    async def _reached(self, index: int) -> None:
        try:
            await within(self.came[index].wait(), _LIMIT_S)
        except asyncio.TimeoutError:
            raise ValueError(
                f"worker {index} did not come within {_LIMIT_S:.0f} s for what mpirun starts there"
            ) from None

    async def over(self) -> List[int]:
        """mpirun has ended: nobody waits any more. Returns the workers on which nothing was started."""
        unused = [index for index, order in self._orders.items() if not order.done()]
        for index in unused:
            self._orders[index].set_result(_NOTHING)
        if self._talks:
            await asyncio.wait(self._talks, timeout=_LEAVE_S)
        return unused


async def run(words: Sequence[str]) -> int:
    """mpirun's exit code, or minus its signal. Raises UnusablePathError, OSError."""
    key, environ = os.environ.pop(contract.ENV_MPI_KEY), os.environ
    address, port = environ[contract.ENV_MASTER_ADDR], int(environ[contract.ENV_MASTER_PORT])
    with tempfile.TemporaryDirectory(prefix="mpi" + environ.get(contract.ENV_TMP_MARK, "")) as folder:
        ranks_port, door = _free_port(address), os.path.join(folder, "s")
        handover = Handover(key, int(environ[contract.ENV_ATTEMPT]), int(environ["PET_NNODES"]), ranks_port)
        env = {**_environment(folder, address, ranks_port), contract.ENV_MPI_SOCKET: door}
        async with await asyncio.start_server(handover.worker, address, port, limit=handshake.FRAME_LIMIT):
            async with await asyncio.start_unix_server(handover.shell, door, limit=proof.FRAME_LIMIT):
                ends_with_us = functools.partial(tie.tie_to, os.getpid())
                process = await asyncio.create_subprocess_exec(*words, env=env, preexec_fn=ends_with_us)
                code = await process.wait()
                unused = await handover.over()
    if code == 0 and unused:
        named = ", ".join(map(str, unused))
        way_out = "leave out its -n and --host"
        print(f"trainjob: {words[0]} has started nothing on worker {named}: {way_out}", file=sys.stderr)
        return 1
    return code


def _environment(folder: str, address: str, ranks_port: int) -> Dict[str, str]:
    host_file, workers = os.path.join(folder, "hosts"), int(os.environ["PET_NNODES"])
    with open(host_file, "w", encoding="ascii") as file:
        file.write(places.hosts(workers, int(os.environ["PET_NPROC_PER_NODE"])))
    env = places.environment(os.environ, host_file, _is_loopback(address), workers)
    return places.own_folder(env, folder, ranks_port)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(str(socket.getaddrinfo(address, None)[0][4][0]).partition("%")[0]).is_loopback


def _free_port(address: str) -> int:
    family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as one:
        one.bind(where)
        return int(one.getsockname()[1])


def main() -> None:
    """`mpirun_side mpirun...`"""
    words = sys.argv[1:]
    said = subprocess.run([words[0], "--version"], stdout=subprocess.PIPE, timeout=_VERSION_S).stdout
    version = said.decode(errors="replace")
    if not places.is_known(version):
        first = version.strip().partition("\n")[0]
        _refuse(f"{words[0]} is {first or 'nothing that tells its version'}: Open MPI 4 is needed")
    try:
        code = asyncio.run(run(words))
    except places.UnusablePathError as error:
        _refuse(str(error))
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _refuse(why: str) -> NoReturn:
    """No restart mends it: the agent is told so, as an exit code alone would not say."""
    link.tell_agent(contract.END_START, RuntimeError(why))
    sys.exit(f"trainjob: {why}")
