"""Moving bytes between files: copies to storage that are checksummed on the way, and several files at once.

Checksums are taken in blocks by functions that release the GIL, so several files go at once. The checksum is taken of
the very bytes that are written, which is why storage copies never use copy_file_range. Used by staging and the stores.
"""

from __future__ import annotations

import os
import queue
import threading
from io import FileIO
from typing import Callable, Iterable, Iterator, List, Optional, Tuple, TypeVar

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores import digest

ALGORITHM = digest.CRC32
"""What files on paths are checksummed by."""
BLOCK = 1 << 20
Progress = Callable[[int], None]
"""Called with the number of bytes that were just moved; from any thread."""
T = TypeVar("T")


def nothing(_count: int) -> None:
    """A Progress that nobody watches."""


def open_staged(source: str) -> FileIO:
    """A staged file to be stored. Raises StoreError."""
    try:
        return open(source, "rb", buffering=0)
    except OSError as error:
        raise StoreError(*errors.explain(error, "read the staged file", source, writing=False)) from error


def open_target(path: str) -> FileIO:
    """A new file that something is brought to, its folders made; what was there goes, and of a link not what it
    leads to. Raises StoreError.
    """
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        return open(path, "xb", buffering=0)
    except OSError as error:
        raise StoreError(*errors.explain(error, "write", path, writing=True)) from error


def protect(file: int) -> None:
    """Take everybody's right to write from an open file that is kept. Root may write all the same, and some file
    systems know no rights: what is kept is compared before it is believed.
    """
    try:
        os.fchmod(file, os.fstat(file).st_mode & 0o7555)
    except OSError:
        pass


def copy(source: int, target: int, progress: Progress = nothing, algorithm: str = ALGORITHM) -> Tuple[int, str]:
    """Copy from the current positions to the end; (bytes, checksum of what was written)."""
    total, crc = 0, 0
    for block in _blocks(source):
        crc = digest.update(algorithm, block, crc)
        done = 0
        while done < len(block):
            done += os.write(target, block[done:])
        total += len(block)
        progress(len(block))
    return total, digest.text(algorithm, crc)


def checksum(source: int, progress: Progress = nothing, algorithm: str = ALGORITHM) -> Tuple[int, str]:
    """(bytes, checksum) from the current position to the end."""
    total, crc = 0, 0
    for block in _blocks(source):
        crc = digest.update(algorithm, block, crc)
        total += len(block)
        progress(len(block))
    return total, digest.text(algorithm, crc)


def _blocks(source: int) -> Iterator[memoryview]:
    """What is left of a file, in views of one buffer: each is valid until the next."""
    buffer = bytearray(BLOCK)
    view = memoryview(buffer)
    while True:
        count = os.readv(source, [buffer])
        if not count:
            return
        yield view[:count]


def same_bytes(one: str, other: str) -> bool:
    """Whether two files of one size hold the same bytes."""
    with open(one, "rb", buffering=0) as a, open(other, "rb", buffering=0) as b:
        left, right = bytearray(BLOCK), bytearray(BLOCK)
        while True:
            n, m = a.readinto(left), b.readinto(right)
            if n != m or memoryview(left)[:n] != memoryview(right)[:m]:
                return False
            if not n:
                return True


def each(
    items: Iterable[T], work: Callable[[T], None], threads: int, spare: Optional[threading.Semaphore] = None
) -> None:
    """`work` on every item, some at a time. The first error stops the rest and is raised, once no thread is at work any
    more.

    `spare`: of what several callers share. Beyond the caller's own, a thread begins only while one of these is free,
    also later, and takes it along.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    count = 0
    for item in items:
        waiting.put(item)
        count += 1
    failed: List[BaseException] = []
    team: List[threading.Thread] = []

    def more() -> None:
        while (
            len(team) < min(threads, count) - 1
            and not waiting.empty()
            and (spare is None or spare.acquire(blocking=False))
        ):
            thread = threading.Thread(target=assist, name=f"transfer-{len(team)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # at a limit of processes there is none for now: those at work go on
                if spare is not None:
                    spare.release()
                return
            team.append(thread)

    def assist() -> None:
        run(None)
        if spare is not None:
            spare.release()

    def run(before: Optional[Callable[[], None]]) -> None:
        while not failed:
            if before is not None:
                before()
            item = _next(waiting)
            if item is None:
                return
            try:
                work(item[0])
            except BaseException as error:  # carried to the caller's thread, whatever it is
                failed.append(error)

    run(more)
    for thread in team:
        thread.join()
    if failed:
        error = failed[0]
        failed.clear()
        try:
            raise error
        finally:
            del error  # its traceback names this frame: together they would keep all that the callers hold


def _next(waiting: queue.SimpleQueue[T]) -> Optional[Tuple[T]]:
    try:
        return (waiting.get_nowait(),)
    except queue.Empty:
        return None
