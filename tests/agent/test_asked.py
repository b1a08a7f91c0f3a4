"""A person asks where the ranks of a cluster's job are: its agents answer once, and training goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.agent_rig import Rig
from support.bare_site import bare_site
from support.patience import HANG_S
from trainjob.agent.attempts.member import NOT_STARTED, Member
from trainjob.agent.wire.from_leader import Stacks
from trainjob.agent.wire.from_member import FromMember, StacksAre

WAITS = """
import time, trainjob
c = trainjob.get_context()

def load_batch():
    while True:
        time.sleep(0.01)

if c.rank == 0:
    load_batch()
trainjob.barrier()
"""


def test_a_rank_that_is_not_started_yet_is_no_fault() -> None:
    async def scene() -> FromMember:
        said: asyncio.Queue[FromMember] = asyncio.Queue()
        here: Any = bare_site(None, None)
        here.socket_folder, here.config.place = "/nowhere", "digits-1"

        def nobody(number: int) -> Any:
            raise ValueError(f"rank {number} is none of this worker's")

        member = Member(here, SimpleNamespace(process_of=nobody, joined=None, damaged=None), said.put_nowait)  # type: ignore[arg-type]
        member.take(Stacks(1, (2, 3)))
        found = await said.get()
        member.close()
        return found

    answer = asyncio.run(scene())
    assert isinstance(answer, StacksAre)
    assert (answer.request, answer.stacks) == (1, {2: NOT_STARTED, 3: NOT_STARTED})


@pytest.mark.slow
def test_each_question_is_answered_once_for_all_ranks(tmp_path: Path) -> None:
    with Rig(tmp_path, script=WAITS) as rig:
        rig.run(1)
        rig.wait(lambda: rig.report(0)["begin"] is not None, "they have begun")
        word = dict(rig.coordinator.instructions[0])

        def ask(request: str) -> str:
            rig.coordinator.tell(0, **word, stacks=request)
            rig.wait(lambda: (rig.report(0)["stacks"] or {}).get("request") == request, "the answer")
            return str(rig.report(0)["stacks"]["stacks"])

        answers: list[str] = []
        until = time.monotonic() + HANG_S
        while not answers or ("load_batch" not in answers[-1] or "barrier" not in answers[-1]):
            assert time.monotonic() < until, answers[-1]
            answers.append(ask(f"q{len(answers)}"))
        assert "load_batch" in answers[-1] and "barrier" in answers[-1], answers[-1]
        rig.coordinator.tell(0, **word)
        rig.wait(lambda: rig.report(0)["stacks"] is None, "nobody asks any more")
        assert rig.report(1)["stacks"] is None
