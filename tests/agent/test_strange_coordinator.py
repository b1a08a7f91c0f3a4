"""What an agent makes of answers that are no coordinator's: a proxy's, another server's, an operator's of another
version. It goes on as it was told last, and asks again until a coordinator answers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from support import lone_agent
from support.patience import HANG_S
from trainjob.agent.control.sync import Sync
from trainjob_api import contract


def answer(status: int, body: str, *headers: str) -> bytes:
    lines = f"HTTP/1.1 {status} X", *headers, f"Content-Length: {len(body)}", "", body
    return "\r\n".join(lines).encode()


def told(instruction: object, transition: object = 1) -> bytes:
    return answer(200, json.dumps({"transition": transition, "instruction": instruction}))


GOOD = told({"do": contract.DO_WAIT})
PAGE = "<html>please log in</html>"
STRANGE = {
    "nothing": answer(200, ""),
    "no contents": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a page": answer(200, PAGE),
    "a list": answer(200, "[]"),
    "no transition": answer(200, json.dumps({"instruction": {"do": contract.DO_EXIT}})),
    "no instruction": answer(200, json.dumps({"transition": 9})),
    "a word": told(contract.DO_EXIT, 9),
    "null": told(None, 9),
    "a list to do": told([contract.DO_EXIT], 9),
    "nothing to do": told({}, 9),
    "a number to do": told({"do": 5}, 9),
    "no number": told({"do": contract.DO_EXIT}, "9"),
    "half a number": told({"do": contract.DO_EXIT}, 9.5),
    "no end": answer(200, '{"transition": Infinity, "instruction": {"do": "exit"}}'),
    "depths": answer(200, "[" * 100_000),
    "elsewhere": answer(302, PAGE, "Location: /login"),
    "bad request": answer(400, PAGE),
    "who are you": answer(401, PAGE),
    "no": answer(403, PAGE),
    "not found": answer(404, PAGE),
    "gone": answer(410, PAGE),
    "broken": answer(500, PAGE),
    "no way": answer(502, PAGE),
    "half an answer": answer(200, "{}").replace(b"Length: 2", b"Length: 20"),
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
    "pieces of nothing": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
}


def heard(folder: Path, strange: bytes) -> tuple[list[contract.Instruction], list[str]]:
    """Instructions and sayings of an agent that is answered so first, and then by a coordinator."""

    async def run() -> tuple[list[contract.Instruction], list[str]]:
        answers, heard, said = iter([strange]), asyncio.Event(), []
        instructions: list[contract.Instruction] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = (line.split(b":") for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(next((int(value) for _, value in lines), 0))
            writer.write(next(answers, GOOD))
            writer.close()

        def on_reply(instruction: contract.Instruction) -> None:
            instructions.append(instruction)
            heard.set()

        server = await asyncio.start_server(serve, "127.0.0.1")
        made = lone_agent.asking(server, folder)
        talking = Sync(made, lambda: {"slot": 0}, on_reply, said.append)
        task = asyncio.create_task(talking.run())
        waits = asyncio.create_task(heard.wait())
        await asyncio.wait({task, waits}, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
        for each in (task, waits):
            each.cancel()
        faults = [each for each in await asyncio.gather(task, return_exceptions=True) if isinstance(each, Exception)]
        talking.close()
        server.close()
        assert faults == [], "the agent would end"
        return instructions, said

    return asyncio.run(run())


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_only_a_coordinator_tells_an_agent_what_to_do(tmp_path: Path, strange: bytes) -> None:
    instructions, said = heard(tmp_path, strange)
    assert instructions[:1] == [{"do": contract.DO_WAIT}]
    assert "training continues, trying again" in said[0] and said[1] == "the coordinator answers again"


@pytest.mark.parametrize("strange", ["nothing", "a page", "a word"])
def test_who_answers_in_its_place_is_told_as_that(tmp_path: Path, strange: str) -> None:
    assert "tells nothing to do" in heard(tmp_path, STRANGE[strange])[1][0]
