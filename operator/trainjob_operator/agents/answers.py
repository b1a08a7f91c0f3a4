"""What a request to the coordinator is answered with: at once, or once there is something to say. Made by
`coordinator.py` and `polls.py`, sent by `connection.py`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and JSON body of a reply."""

    status: int
    body: Mapping[str, Any]
    retry_after_s: float | None = None
    """Not before then is it worth another try; sent as Retry-After in whole seconds."""


def refusal(status: int, sentence: str, retry_after_s: float | None = None) -> Answer:
    """An error reply: one sentence."""
    return Answer(status, {"error": sentence}, retry_after_s)


def fault() -> Answer:
    """Where an exception kept the operator from answering; who says so has logged it."""
    return refusal(500, "the operator could not answer this; its log says why")


def as_http(answer: Answer, keeps: bool, with_body: bool) -> bytes:
    """Its bytes; of one that JSON has no words for (a number that is none), those of `fault`, and the log says why."""
    try:
        body = json.dumps(answer.body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        _log.exception("an answer of the coordinator could not be written as JSON")
        answer = fault()
        body = json.dumps(answer.body).encode()
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        "Content-Type: application/json; charset=utf-8",
        f"Content-Length: {len(body)}",
    ]
    if answer.retry_after_s is not None:
        lines.append(f"Retry-After: {max(1, math.ceil(answer.retry_after_s))}")
    if not keeps:
        lines.append("Connection: close")
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    return head + body if with_body else head


class Held(Protocol):
    """A request that is answered later. Thousands are held, so no task waits for one."""

    def then(self, answered: Callable[[Answer], None]) -> None:
        """Call this once, and not before this call has returned."""
        ...

    def answer(self) -> None:
        """Answer it now: nothing more comes from who asked, which may be gone."""
        ...

    def hang_up(self) -> None:
        """Who asked is gone: nothing is called any more."""
        ...


Known = Callable[[str | None], None]
"""Says that the caller has shown a good token: which pod's (UID), None where it is no pod's."""
Read = Callable[[], Awaitable[bytes]]
"""Reads the body."""
Serve = Callable[[str, Read, Known], Awaitable[Answer | Held]]
"""(bearer token or "", read, known) -> the answer to a sync, or that it is held."""
