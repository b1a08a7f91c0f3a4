"""When all ranks have ended and storage refuses: what is waited for is said, with what storage answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.virtual_time import run_virtual
from trainjob.agent.attempts.run_end import STORING_WORD_S, RunEnd
from trainjob.agent.wire.from_leader import FROM_LEADER, Completed
from trainjob_api.last_word import shown_of

REFUSED = "Checkpoint 1-1-4 cannot be stored: No space left on device"


@pytest.mark.parametrize("trouble", [None, REFUSED])
def test_what_is_waited_for_is_said_with_what_storage_answers(trouble: str | None) -> None:
    async def main() -> list[str]:
        said: list[str] = []
        site: Any = SimpleNamespace(console=SimpleNamespace(say=said.append), on_fault=said.append)
        commits: Any = SimpleNamespace(failed=None, drained=False, on_their_way=["1-1-4"], trouble=trouble)
        calls: Any = SimpleNamespace(needed=False)
        history: Any = None
        end = RunEnd(site, lambda *_: None, 1, calls, commits, history)
        end.ended_well(0)
        await asyncio.sleep(2.5 * STORING_WORD_S)
        end.close()
        return said

    said = run_virtual(main())
    assert len(said) == 2 and all("as soon as storage has taken checkpoint 1-1-4" in line for line in said)
    assert all((REFUSED in line) is (trouble is not None) for line in said), said


def test_what_is_shown_of_the_run_is_in_its_end_record_and_told_to_all() -> None:
    """Should rank 0's agent not be heard any more: other workers, or whoever finds the record, know it then."""

    async def main() -> tuple[list[Any], list[dict[str, Any]]]:
        told: list[Any] = []
        written: list[dict[str, Any]] = []

        async def write_end(summary: dict[str, Any]) -> None:
            written.append(summary)

        site: Any = SimpleNamespace(on_fault=told.append)
        latest, best = {"id": "1-1-4", "step": 9}, {"id": "1-1-2"}
        commits: Any = SimpleNamespace(
            failed=None, drained=True, latest=latest, best=best, count=3, write_end=write_end
        )
        progress = {"position": 4, "step": 9, "metrics": {"loss": 0.5}, "time": 5.0}
        calls: Any = SimpleNamespace(needed=False, attempt=2, progress=progress)
        history: Any = SimpleNamespace(flush=lambda: asyncio.sleep(0))
        end = RunEnd(site, lambda to, word: told.append((to, word)), 1, calls, commits, history)
        end.ended_well(0)
        while not told:  # noqa: ASYNC110 (one turn of a loop whose time does not pass)
            await asyncio.sleep(0)
        end.close()
        return told, written

    told, written = run_virtual(main())
    shown = {
        "progress": {"position": 4, "step": 9, "metrics": {"loss": 0.5}, "time": 5.0},
        "latest": {"id": "1-1-4", "step": 9},
        "best": {"id": "1-1-2"},
        "checkpoint_count": 3,
    }
    before = {"attempt": 2, "position": 4, "metrics": {"loss": 0.5}, "checkpoint": "1-1-4"}
    assert told == [(None, Completed(shown))] and written == [{**before, "shown": shown}]


@pytest.mark.parametrize("fields", [{}, {"shown": None}, {"shown": {"x": 1}, "later": [2]}])
def test_agents_of_other_versions_understand_that_word(fields: dict[str, Any]) -> None:
    word = FROM_LEADER.parse({"op": "completed", **fields})
    assert isinstance(word, Completed) and shown_of(word.shown) == {}
    assert FROM_LEADER.frame(Completed())[0] == {"op": "completed"}
