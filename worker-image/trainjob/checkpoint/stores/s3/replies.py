"""Replies: read with a whole head or not at all, on boto3's connections too; on ours sought early where a store refuses
contents, and what a refusal means.

Used by `bodies` and `requests`. Errors are boto3's, so that they mean the same.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import xml.etree.ElementTree as ElementTree
from typing import Any, Optional

from trainjob.checkpoint.stores.s3.ways import Body

ERROR_LIMIT = 64 << 10
LINES = 1000
"""Of a head at most: what only says, again and again, that the contents may come would be read for ever."""


def reply_to(connection: socket.socket, method: str) -> http.client.HTTPResponse:
    """To the request that was sent. Raises OSError, HTTPException."""
    reply = _Response(connection, method=method)
    try:
        reply.begin()
    except BaseException:
        reply.close()
        raise
    return reply


def sent(connection: socket.socket, body: Optional[Body]) -> Optional[http.client.HTTPResponse]:
    """Send the contents. A store that refuses does not wait for the end of them: its reply, if there is one."""
    if body is None:
        return None
    try:
        body.send(connection)
    except (BrokenPipeError, ConnectionResetError):
        try:
            reply = reply_to(connection, "PUT")
        except (OSError, http.client.HTTPException):
            reply = None
        if reply is None or reply.status // 100 == 2:
            raise
        return reply
    return None


def refusal(method: str, reply: http.client.HTTPResponse) -> Exception:
    """The error that boto3 would raise."""
    from botocore.exceptions import ClientError

    fields = {"Code": str(reply.status), "Message": reply.reason}
    try:
        for element in ElementTree.fromstring(reply.read(ERROR_LIMIT)):
            fields[element.tag.rpartition("}")[2]] = element.text or ""
    except (ElementTree.ParseError, ValueError, LookupError):  # the latter two: an encoding that is none
        pass
    headers = {name.lower(): value for name, value in reply.getheaders()}
    error: Exception = ClientError(
        {"Error": fields, "ResponseMetadata": {"HTTPStatusCode": reply.status, "HTTPHeaders": headers}},
        f"{method} of contents",
    )
    return error


def only_whole(client: Any) -> None:
    """From now on boto3 takes no reply whose head broke off: without what says how long it is, a list of names would be
    an empty one.
    """
    from botocore import awsrequest

    with contextlib.suppress(AttributeError):  # botocore has it elsewhere: then there is `genuine`
        pools = client._endpoint.http_session._pool_classes_by_scheme
        for scheme, pool in (("http", awsrequest.AWSHTTPConnectionPool), ("https", awsrequest.AWSHTTPSConnectionPool)):
            connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": _Response})
            pools[scheme] = type(pool.__name__, (pool,), {"ConnectionCls": connection})


class _Response(http.client.HTTPResponse):
    """A reply whose head broke off is none; the standard library takes what came of it for whole."""

    def begin(self) -> None:
        stream = self.fp
        self.fp = _Lines(stream)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            self.fp = stream


class _Lines:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._left = LINES

    def readline(self, limit: int = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise http.client.RemoteDisconnected(f"the head of the reply has more than {LINES} lines")
        line = bytes(self._stream.readline(limit))
        if not line.endswith(b"\n") and len(line) != limit:
            raise http.client.RemoteDisconnected("the head of the reply broke off")
        return line

    def close(self) -> None:
        self._stream.close()
