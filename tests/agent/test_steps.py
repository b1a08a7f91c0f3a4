"""What an agent still keeps of a report, whatever ended it meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.background import no_fault
from trainjob.agent.attempts import steps as steps_module
from trainjob.agent.attempts.steps import Steps
from trainjob.agent.background import Background
from trainjob.agent.wire.from_leader import Persist, Stage
from trainjob.agent.wire.from_member import FromMember, Persisted, StageFailed
from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StagingError
from trainjob_api import contract
from trainjob_api.rank_messages import Collective, Offer

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


@pytest.mark.parametrize("kind", [errors.LOST, errors.CHANGED, errors.FULL])
def test_that_files_are_gone_is_told_behind_the_end_of_the_rank_that_took_them_away(kind: str) -> None:
    """Who leaves report() takes its temporary folder with it, a moment before its process ends."""

    async def scene() -> None:
        said, told = list[FromMember | str](), asyncio.Event()

        def say(word: FromMember) -> None:
            said.append(word)
            told.set()

        async def stage(*_: Any) -> Any:
            raise StagingError(kind, "it is gone")

        background = Background(no_fault)
        steps = Steps(SimpleNamespace(stage=stage), say, lambda rank, word: None, background)  # type: ignore[arg-type]
        steps.gave(1, Collective(1, contract.KIND_REPORT, checkpoint=Offer("/gone")))
        steps.take(Stage(1, "1-1-1"))
        for _ in range(10):
            await asyncio.sleep(0)
        steps.ended(1)
        said.append("the end of the rank")
        await told.wait()
        failed = StageFailed(1, "it is gone", kind == errors.FULL)
        assert said == ([failed, "the end of the rank"] if kind == errors.FULL else ["the end of the rank", failed])
        background.cancel()

    asyncio.run(scene())


def test_without_such_an_end_it_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "LEFT_S", 0.01)

    async def scene() -> None:
        said: asyncio.Queue[FromMember] = asyncio.Queue()

        async def stage(*_: Any) -> Any:
            raise StagingError(errors.LOST, "it is gone")

        background = Background(no_fault)
        steps = Steps(SimpleNamespace(stage=stage), said.put_nowait, lambda rank, word: None, background)  # type: ignore[arg-type]
        steps.take(Stage(1, "1-1-1"))
        assert await said.get() == StageFailed(1, "it is gone")
        background.cancel()

    asyncio.run(scene())
