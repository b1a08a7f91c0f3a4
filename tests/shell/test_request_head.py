"""The head of a request: what is read of it, and what is refused."""

from __future__ import annotations

import pytest

from trainjob_operator.agents.request_head import BadHead, Head, parse_head

AGENTS = b"""POST /v1/sync HTTP/1.1
Host: coordinator:443
Content-Length: 1200
Content-Type: application/json
Authorization: Bearer abc.def""".replace(b"\n", b"\r\n")


def head(*lines: str, first: str = "POST /v1/sync HTTP/1.1") -> Head:
    return parse_head("\r\n".join((first, *lines)).encode("utf-8", "surrogateescape"))


def test_an_agents_request() -> None:
    assert parse_head(AGENTS) == Head("POST", "/v1/sync", "abc.def", 1200, asks_first=False, keeps=True)


def test_what_may_be_absent_or_written_otherwise() -> None:
    assert head() == Head("POST", "/v1/sync", "", 0, asks_first=False, keeps=True)
    assert head("CONTENT-length:  7 ", "authorization: bearer  x ") == Head("POST", "/v1/sync", "x", 7, False, True)
    assert head("Authorization: Basic eA==").token == ""
    assert head("Authorization: Bearer \udcff").token == "\udcff", "what is no text is a bad token, not an error"
    assert head(first="GET /healthz?full=1 HTTP/1.1").path == "/healthz"
    assert head("Expect: 100-Continue").asks_first
    assert not head("Expect: 100-continue", first="POST /v1/sync HTTP/1.0").asks_first


@pytest.mark.parametrize(
    ("first", "lines", "keeps"),
    [
        ("GET / HTTP/1.1", (), True),
        ("GET / HTTP/1.1", ("Connection: keep-alive",), True),
        ("GET / HTTP/1.1", ("Connection: Close",), False),
        ("GET / HTTP/1.1", ("Connection: te, close",), False),
        ("GET / HTTP/1.1", ("Connection: te", "Connection: close"), False),
        ("GET / HTTP/1.0", (), False),
    ],
)
def test_whether_the_connection_stays(first: str, lines: tuple[str, ...], keeps: bool) -> None:
    assert head(*lines, first=first).keeps is keeps


@pytest.mark.parametrize(
    "first",
    [
        "",
        "GET",
        "GET /",
        "GET / HTTP/2.0",
        "GET  / HTTP/1.1",
        "get / HTTP/1.1",
        "GET http://x/ HTTP/1.1",
        "GET /\x01 HTTP/1.1",
        "GET / HTTP/1.1 ",
        "\x16\x03\x01\x02",
    ],
)
def test_what_is_no_request_is_refused(first: str) -> None:
    with pytest.raises(BadHead) as refused:
        head(first=first)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Content-Length: 5", "Content-Length: 6"), 400),
        (("Content-Length: 5", "content-length: 5"), 400),
        (("Content-Length: 5, 5",), 400),
        (("Content-Length: -1",), 400),
        (("Content-Length: +1",), 400),
        (("Content-Length: 0x10",), 400),
        (("Content-Length: 1_0",), 400),
        (("Content-Length: \u0663",), 400),
        (("Content-Length: \x0b5",), 400),
        (("Content-Length: 5\x0c",), 400),
        (("Content-Length: \u00a05",), 400),
        (("Content-Length:",), 400),
        (("Content-Length: " + "9" * 5000,), 400),
        (("Authorization: Bearer a", "Authorization: Bearer b"), 400),
        (("Transfer-Encoding: chunked",), 411),
        (("Transfer-Encoding : chunked",), 400),
        (("transfer-encoding: identity", "Content-Length: 5"), 411),
        ((" folded: line",), 400),
        (("X: a", "\tb"), 400),
        (("no colon",), 400),
        ((": no name",), 400),
        (("Content-Length\x00: 5",), 400),
        (("X: a\nContent-Length: 5",), 400),
        (("X: a\rContent-Length: 5",), 400),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(lines: tuple[str, ...], status: int) -> None:
    with pytest.raises(BadHead) as refused:
        head(*lines)
    assert refused.value.status == status and len(str(refused.value).split()) > 3
