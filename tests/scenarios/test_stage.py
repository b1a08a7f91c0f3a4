"""What is looked for after each scenario: a job's own, whatever else lies on this machine."""

from __future__ import annotations

import tempfile
from multiprocessing import get_context, shared_memory

from support.stages import left_in_shared_memory


def test_what_another_program_leaves_in_shared_memory_is_none_of_the_jobs() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="another-program-") as other:
        assert other.name not in left_in_shared_memory()


def test_what_a_program_of_the_job_leaves_there_is_seen() -> None:
    lock = get_context("spawn").Lock()
    shared = shared_memory.SharedMemory(create=True, size=1)
    try:
        names = {f"/dev/shm/sem.{lock._semlock.name.strip('/')}", f"/dev/shm/{shared.name.strip('/')}"}  # type: ignore[attr-defined]
        assert names <= left_in_shared_memory()
    finally:
        shared.close()
        shared.unlink()
