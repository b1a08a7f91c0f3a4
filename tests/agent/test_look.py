"""The look for a run's end record keeps asking a storage that cannot be read, and comes to an end."""

from __future__ import annotations

from typing import Any, cast

from support.virtual_time import run_virtual
from trainjob.agent.control.look import PAUSES_S, Found, look
from trainjob.agent.storing.storage import StorageChild, StorageError


class Refusing:
    """Answers as a storage child does, after so many refusals."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.calls = refusals, 0

    async def call(self, op: str, fields: dict[str, Any]) -> dict[str, Any]:
        assert (op, fields) == ("ended", {"job_uid": "uid-1"})
        self.calls += 1
        if self.calls <= self.refusals:
            raise StorageError("unreadable", "access denied")
        return {"run": 2, "completed": True}


def ask(refusals: int) -> tuple[Found, int, list[str]]:
    storage, said = Refusing(refusals), list[str]()
    found = run_virtual(look(cast(StorageChild, storage), "uid-1", said.append))
    return found, storage.calls, said


def test_a_storage_that_answers_in_the_end() -> None:
    found, calls, said = ask(refusals=3)
    assert (found, calls) == (Found(2, True), 4) and len(said) == 1, "one trouble is said once"


def test_a_storage_that_cannot_be_read() -> None:
    found, calls, said = ask(refusals=10**9)
    assert not found.completed and calls == len(PAUSES_S) + 1 and sum(PAUSES_S) >= 60
    assert found.trouble is not None and "access denied" in found.trouble and said == [found.trouble]


def test_without_storage_there_is_nothing_to_be_found() -> None:
    assert run_virtual(look(None, "uid-1", print)) == Found(None, False)
