"""When all ranks have ended and storage refuses: what is waited for is said, with what storage answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from support.virtual_time import run_virtual
from trainjob.agent.attempts.run_end import STORING_WORD_S, RunEnd

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
