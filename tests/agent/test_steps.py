"""What an agent still keeps of a report, whatever ended it meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.background import no_fault
from trainjob.agent.attempts.steps import Steps
from trainjob.agent.background import Background
from trainjob.agent.wire.from_leader import Persist
from trainjob.agent.wire.from_member import FromMember, Persisted

NOTE = {"id": "1-1-1", "files": [["model.pt", 3, 0]]}


@pytest.mark.parametrize(("ends", "handed_in"), [(None, [NOTE]), ("failed", []), ("released", [])])
def test_a_note_that_is_persisted_after_its_report_is_over_is_not_handed_in(
    ends: str | None, handed_in: list[Any]
) -> None:
    async def scene() -> None:
        written, told, stored, said = asyncio.Event(), asyncio.Event(), list[Any](), list[FromMember]()

        def say(word: FromMember) -> None:
            said.append(word)
            told.set()

        async def persist(note: Any) -> None:
            await written.wait()

        async def released(note: Any) -> None:
            stored.append(note)

        background = Background(no_fault)
        saving: Any = SimpleNamespace(persist=persist, released=released)
        steps = Steps(saving, say, lambda rank, word: None, background)
        steps.take(Persist(1, NOTE))
        await asyncio.sleep(0)
        if ends is not None:
            getattr(steps, ends)(1)
        written.set()
        await told.wait()
        await steps.hand_in()
        assert (said, stored) == ([Persisted(1)], handed_in)
        steps.take(Persist(1, NOTE))
        for _ in range(5):
            await asyncio.sleep(0)
        assert said == [Persisted(1)] * (2 if ends is None else 1), "nothing is done for a report that is over"
        background.cancel()

    asyncio.run(scene())
