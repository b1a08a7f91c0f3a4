"""The head of an HTTP/1.1 request, from bytes that anybody may have sent. Pure; used by `connection.py`.

No more of HTTP is understood than an agent needs: one length, no chunks, no folded lines. What could be read in two
ways is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD_LIMIT = 16 * 1024
"""Bytes, the token among them."""
END = b"\r\n\r\n"
_LINE = re.compile(r"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGITS = re.compile(r"[0-9]{1,15}")
_ONCE = ("content-length", "authorization")


class BadHead(Exception):
    """It is no request that is served here; str() is one sentence for who sent it."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """What is looked at of it."""

    method: str
    path: str
    token: str
    """The bearer's, "" when none was sent."""
    length: int
    """Of the body, in bytes."""
    asks_first: bool
    """It waits to be told that its body is wanted."""
    keeps: bool
    """The connection is to stay open afterwards."""


def parse_head(text: bytes) -> Head:
    """Of a head without the empty line that ends it. Raises BadHead."""
    first, *lines = text.decode("utf-8", "surrogateescape").split("\r\n")
    request = _LINE.fullmatch(first)
    if request is None:
        raise BadHead(400, "the first line is no HTTP/1.1 request for a path of this server")
    fields = _fields(lines)
    if "transfer-encoding" in fields:
        raise BadHead(411, "the body needs a Content-Length: it is not read in chunks")
    length = fields.get("content-length", "0")
    if not _DIGITS.fullmatch(length):
        raise BadHead(400, "Content-Length is no number of bytes")
    scheme, _, token = fields.get("authorization", "").partition(" ")
    words = {word.strip() for word in fields.get("connection", "").lower().split(",")}
    newer = request[3] == "1"
    return Head(
        method=request[1],
        path=request[2].partition("?")[0],
        token=token.strip() if scheme.lower() == "bearer" else "",
        length=int(length),
        asks_first=newer and fields.get("expect", "").lower() == "100-continue",
        keeps=newer and "close" not in words,
    )


def _fields(lines: list[str]) -> dict[str, str]:
    """By name in small letters. Raises BadHead."""
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or "\n" in value or "\r" in value or "\0" in value:
            raise BadHead(400, "a line of the head is no header field")
        name, value = name.lower(), value.strip(" \t")
        if name in fields and name in _ONCE:
            raise BadHead(400, f"there is more than one {name}")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields
