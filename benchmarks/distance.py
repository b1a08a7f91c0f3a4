"""A TCP relay that makes a server on this machine a distant one: a delay each way, and a bounded rate for each
connection and direction.

    python -m benchmarks.distance --to HOST:PORT --delay SECONDS --rate MB_PER_S

Prints the address on which it listens, and ends with its stdin. Used by `s3_transfer`, whose contenders reach their
server through it.

Connecting costs a round trip: what a client sends first leaves two delays after it connected. Every byte arrives a
delay after it left, at no more than the rate, and up to a few milliseconds later, for bytes are handed on in blocks.
Nothing bounds the sum of all connections but this process, which is to cost little: it shares the machine's cores with
what is measured. No packet is lost, and no window grows slowly.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import math
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BLOCK = 256 << 10
"""What is read at once."""
SLACK = 1 << 20
"""What a direction holds beside the bytes that are on their way at its rate."""
TICK_S = 0.004
"""How often a stream that is under way is handed on; the end of what was sent has its own moment."""
WAITING = 1024
"""Connections that may wait to be accepted."""
END_S = 30.0
_INPUT = select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP
_OUTPUT = select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP


@dataclass(frozen=True)
class Distance:
    """How far the server is."""

    delay_s: float
    """One way."""
    rate: float
    """Bytes a second, of a connection in one direction."""

    @property
    def held(self) -> int:
        """Bytes that a direction may hold."""
        return int(self.rate * self.delay_s) + SLACK


class Line:
    """When the bytes of one direction arrive. Knows no bytes and no clock."""

    def __init__(self, distance: Distance, opens: float) -> None:
        self._distance = distance
        self._free = opens
        self._runs: deque[tuple[float, int]] = deque()
        """(when its first byte leaves, bytes) of what leaves without a gap."""

    def leave(self, now: float, count: int) -> None:
        """So many bytes were sent."""
        start = max(now, self._free)
        if self._runs and start == self._free:
            first, before = self._runs.pop()
            self._runs.append((first, before + count))
        else:
            self._runs.append((start, count))
        self._free = start + count / self._distance.rate

    def arrived(self, now: float) -> int:
        """How many may be handed on; those that were are said to `handed`."""
        total = 0
        for start, count in self._runs:
            out = (now - self._distance.delay_s - start) * self._distance.rate
            total += min(count, max(0, int(out)))
            if out < count:
                break
        return total

    def handed(self, count: int) -> None:
        """So many went on."""
        while count:
            start, length = self._runs.popleft()
            part = min(count, length)
            if part < length:
                self._runs.appendleft((start + part / self._distance.rate, length - part))
            count -= part

    def next(self, now: float) -> float:
        """When it is worth a look again: where a run ends, or at a tick if that is long until then. All streams have
        the same ticks.
        """
        start, count = self._runs[0]
        begin = max(now, start + self._distance.delay_s)
        end = (
            start + self._distance.delay_s + (count + 1) / self._distance.rate
        )  # times are rounded: a byte more, and the last one has arrived
        return end if end <= begin + TICK_S else (math.floor(begin / TICK_S) + 1) * TICK_S

    def after(self, now: float) -> float:
        """When something that is sent now behind all bytes arrives."""
        return max(now, self._free) + self._distance.delay_s


class Ring:
    """The bytes of one direction, in the order in which they came."""

    def __init__(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self._size = size
        self._first = 0
        self.count = 0

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return self._size - self.count

    def free(self) -> memoryview:
        """Where the next bytes go; `added` says how many came."""
        at = (self._first + self.count) % self._size
        return self._memory[at : min(self._size, at + min(BLOCK, self.room))]

    def added(self, count: int) -> None:
        """They are part of it."""
        self.count += count

    def first(self, count: int) -> list[memoryview]:
        """The oldest bytes."""
        end = self._first + count
        return [self._memory[self._first : min(end, self._size)], self._memory[: max(0, end - self._size)]]

    def removed(self, count: int) -> None:
        """The oldest are not needed any more."""
        self._first = (self._first + count) % self._size
        self.count -= count


class Flow:
    """One direction of a connection."""

    def __init__(self, distance: Distance, source: socket.socket, sink: socket.socket, opens: float) -> None:
        self.source, self.sink = source, sink
        self._line, self._ring = Line(distance, opens), Ring(distance.held)
        self._ends: float | None = None
        self.back: Flow = self
        """The other direction."""
        self.reset = False
        """The source broke: so does the sink, when the news arrives there."""
        self.over = False
        self.blocked = False
        """The sink takes nothing at the moment."""
        self.woken: float | None = None
        """The moment for which the loop has this flow on its list."""

    @property
    def hungry(self) -> bool:
        """Whether more is to be read. Only for a whole block of room: many small reads would cost more than the
        bytes.
        """
        return self._ends is None and not self.over and self._ring.room >= BLOCK

    def read(self) -> None:
        """What the source has."""
        try:
            count = self.source.recv_into(self._ring.free())
        except BlockingIOError:
            return
        except OSError:
            self.broken()
            return
        now = time.monotonic()  # read after the bytes came: read before, they would leave too early
        if count:
            self._ring.added(count)
            self._line.leave(now, count)
        else:
            self._ends = self._line.after(now)

    def broken(self) -> None:
        """The source is no more."""
        if not self.reset:
            self.reset, self._ends = True, self._line.after(time.monotonic())

    def write(self) -> None:
        """What has arrived by now; behind the last byte, the end."""
        now = time.monotonic()
        count = self._line.arrived(now)
        if count:
            try:
                sent = self.sink.sendmsg(self._ring.first(count))
            except BlockingIOError:
                sent = 0
            except OSError:
                self.over = True
                self.back.broken()
                return
            self.blocked = sent < count
            self._ring.removed(sent)
            self._line.handed(sent)
        if self._ends is not None and not self._ring.count and now >= self._ends:
            self.over = True
            if not self.reset:
                with contextlib.suppress(OSError):
                    self.sink.shutdown(socket.SHUT_WR)

    def due(self) -> float | None:
        """When to write next."""
        if self.over or self.blocked:
            return None
        return self._line.next(time.monotonic()) if self._ring.count else self._ends


class Relay:
    """All connections, in one thread."""

    def __init__(self, to: tuple[str, int], distance: Distance) -> None:
        self._to, self._distance = to, distance
        self._poll = select.epoll()
        self._listener = socket.socket()
        _bounded(self._listener)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(WAITING)
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._from: dict[int, Flow] = {}
        """The flow out of each socket; the one into it is its `back`."""
        self._interest: dict[int, int] = {}
        self._list: list[tuple[float, int, Flow]] = []
        self._numbers = itertools.count()
        self._end = -1

    def until(self, end: int) -> None:
        """The file descriptor with which the relay ends. Raises PermissionError for one of a kind that cannot be
        waited for.
        """
        self._poll.register(end, select.EPOLLIN)
        self._end = end

    def run(self) -> None:
        """Until then."""
        self._poll.register(self._listener, select.EPOLLIN)
        while True:
            wait = max(0.0, self._list[0][0] - time.monotonic()) if self._list else -1
            for number, event in self._poll.poll(wait):
                if number == self._end:
                    if not os.read(self._end, BLOCK):
                        return
                elif number == self._listener.fileno():
                    self._accept()
                elif number in self._from:
                    self._socket(self._from[number], event)
            self._late()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        now, far = time.monotonic(), socket.socket()
        _bounded(far)
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.connect_ex(self._to)  # what comes of it shows when it is read
        there = Flow(self._distance, near, far, now + 2 * self._distance.delay_s)
        back = Flow(self._distance, far, near, now + self._distance.delay_s)
        there.back, back.back = back, there
        self._from[near.fileno()], self._from[far.fileno()] = there, back
        self._look_after(there)

    def _socket(self, flow: Flow, event: int) -> None:
        if event & _INPUT and flow.hungry:
            flow.read()
        if event & _OUTPUT and flow.back.blocked:
            flow.back.write()
        self._look_after(flow)

    def _late(self) -> None:
        now = time.monotonic()
        while self._list and self._list[0][0] <= now:
            when, _, flow = heapq.heappop(self._list)
            if flow.woken == when:
                flow.woken = None
                if not flow.over and not flow.blocked:
                    flow.write()
                self._look_after(flow)

    def _look_after(self, flow: Flow) -> None:
        """What to wait for next, in both directions of its connection."""
        pair = (flow, flow.back)
        if any(one.over and one.reset for one in pair) or all(one.over for one in pair):
            self._close(pair)
            return
        for one in pair:
            self._watch(
                one.source,
                (select.EPOLLIN if one.hungry else 0)
                | (select.EPOLLOUT if one.back.blocked and not one.back.over else 0),
            )
            due = one.due()
            if due is not None and (one.woken is None or due < one.woken):
                one.woken = due
                heapq.heappush(self._list, (due, next(self._numbers), one))

    def _watch(self, one: socket.socket, wanted: int) -> None:
        """A socket of which nothing is wanted is not watched at all: it would report a hang-up again and again."""
        number = one.fileno()
        before = self._interest.get(number, 0)
        if wanted == before:
            return
        if not wanted:
            self._poll.unregister(number)
        elif before:
            self._poll.modify(number, wanted)
        else:
            self._poll.register(number, wanted)
        self._interest[number] = wanted

    def _close(self, pair: tuple[Flow, Flow]) -> None:
        for flow in pair:
            flow.over, flow.woken = True, None
            del self._from[flow.source.fileno()]
            self._watch(flow.source, 0)
            del self._interest[flow.source.fileno()]
            if any(one.reset for one in pair):
                with contextlib.suppress(OSError):
                    flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            flow.source.close()


def _bounded(one: socket.socket) -> None:
    """The kernel holds little for us: a sender is to feel the distance."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * BLOCK)


class Running(NamedTuple):
    """A relay's process."""

    address: str
    pid: int


@contextlib.contextmanager
def relay(to: str, distance: Distance) -> Iterator[Running]:
    """One to host:port, in a process of its own; ended with the block, or with this process."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.distance",
        "--to",
        to,
        "--delay",
        str(distance.delay_s),
        "--rate",
        str(distance.rate / 1e6),
    ]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the relay does not listen")
        yield Running(address, process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(END_S)
        finally:
            process.kill()


def main() -> int:
    """Listen until stdin ends."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.distance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="the server")
    parser.add_argument("--delay", type=float, required=True, metavar="SECONDS", help="one way")
    parser.add_argument(
        "--rate",
        type=float,
        required=True,
        metavar="MB_PER_S",
        help="of a connection, in one direction; millions of bytes",
    )
    args = parser.parse_args()
    if args.delay < 0 or args.rate <= 0:
        parser.error("--delay must not be negative, --rate must be more than nothing")
    host, _, port = args.to.rpartition(":")
    one = Relay((socket.gethostbyname(host), int(port)), Distance(args.delay, args.rate * 1e6))
    try:
        one.until(sys.stdin.fileno())
    except PermissionError:
        parser.error("stdin is a file: it has to be a pipe or a terminal, whose end is the relay's")
    print(one.address, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        one.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
