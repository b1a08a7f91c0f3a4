"""What a rank's end is told as, out of what it said and wrote: a killed DataLoader, refused arguments."""

from __future__ import annotations

import pytest

from trainjob.agent.processes import loader, refusal
from trainjob_api import contract

SHM = "Bus error. It is possible that dataloader's workers are out of shared memory."


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Killed. ", "process 74 of it was killed by SIGKILL (by somebody, or by the kernel because memory ran out"),
        (SHM, "process 74 of it was killed by SIGBUS (shared memory ran out: /dev/shm)"),
        ("Segmentation fault. ", "process 74 of it was killed by SIGSEGV"),
        ("Something new", "process 74 of it was killed by Something new"),
    ],
)
@pytest.mark.parametrize("in_traceback", [False, True])
def test_a_loaders_process_that_was_killed_is_named_with_its_signal(words: str, said: str, in_traceback: bool) -> None:
    text = f"DataLoader worker (pid 74) is killed by signal: {words}"
    told = "DataLoader worker (pid(s) 74) exited unexpectedly" if in_traceback else text
    traceback = f"Traceback\nRuntimeError: {text}\n\nTraceback\nRuntimeError: {told}"
    found = loader.killed({"type": "RuntimeError", "message": told, "traceback": traceback})
    assert found is not None and found["type"] == contract.LOADER_KILLED and found["traceback"] == traceback
    assert found["message"].startswith(said)


def test_a_loaders_process_that_ended_by_itself_is_another_matter() -> None:
    assert (
        loader.killed({"type": "RuntimeError", "message": "DataLoader worker (pid(s) 74) exited unexpectedly"}) is None
    )
    assert loader.killed(None) is None


@pytest.mark.parametrize(
    ("code", "tail", "said"),
    [
        (2, "usage: t.py [-h]\nt.py: error: unrecognized arguments: -x", "t.py: error: unrecognized arguments: -x"),
        (2, "Usage: t.py [OPTIONS]\n\nError: No such option: -x", "Error: No such option: -x"),
        (2, "bye", None),
        (3, "t.py: error: no", None),
        # Its parser's end was caught, and that was all.
        (1, "usage: t.py [-h]\n          [-y]\nt.py: error: no\n", "t.py: error: no"),
        (1, "usage: t.py [-h]\nt.py: error: no\nso the defaults are taken\nbye\n", None),
        (None, "t.py: error: no", None),
    ],
)
def test_what_a_script_refuses_is_its_own_last_word(code: int | None, tail: str, said: str | None) -> None:
    found = refusal.of(code, tail)
    assert (found and found["message"]) == said
