"""The requests that carry file contents, at little cost for each: GET of a range, PUT of an object or of a part.

Used by `sending` and `receiving` in what `Requests.move` runs. boto3 says where a bucket is and whose credentials
count; connections are kept open, and http.client reads replies. boto3's own call costs 1.5 ms of CPU a request and
copies the contents twice more; this one a quarter of a millisecond. What this module does not know how to reach (a
proxy, another kind of signature) goes through boto3, at its price. Errors are boto3's, so that they mean the same.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from typing import Any, Dict, Generic, List, Optional, Sequence, Tuple
from urllib.parse import quote, urlsplit

from trainjob.checkpoint.stores.s3 import errands, genuine, replies
from trainjob.checkpoint.stores.s3.boto import Boto
from trainjob.checkpoint.stores.s3.errands import Origin
from trainjob.checkpoint.stores.s3.settings import Settings
from trainjob.checkpoint.stores.s3.signature import Signer
from trainjob.checkpoint.stores.s3.ways import Bodies, Body, OrderT, Reply, Target, total

CONNECT_S = 10.0
TURNS = 2
"""Threads that decrypt at once: more of them would spend their time on waiting for each other."""
_PROBE = "trainjob-key"
_AGENT = "trainjob"


def bodies(client: Any, session: Any, settings: Settings, bucket: str) -> Bodies:
    """`client` and `session` (botocore's) decide where and who; the cheap way if it is one that this module knows."""
    from botocore.utils import get_environ_proxies

    base = str(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": _PROBE})).partition("?")[0]
    known = (
        client.meta.config.signature_version in ("s3v4", "s3")
        and base.endswith("/" + _PROBE)
        and not bucket.endswith("--x-s3")
    )
    if not known or get_environ_proxies(base):
        return Boto(client, bucket)
    return Direct(client, session, settings, base[: -len(_PROBE)])


class Direct:
    """Over connections of its own."""

    def __init__(self, client: Any, session: Any, settings: Settings, base: str) -> None:
        self._session, self._settings = session, settings
        self._region = str(client.meta.region_name)
        url = urlsplit(base)
        self._path = url.path
        usual = 443 if url.scheme == "https" else 80
        self._address = str(url.hostname), url.port or usual
        self._host = url.netloc.rpartition(":")[0] if url.port == usual else url.netloc
        self._tls = _trust(session.get_config_variable("ca_bundle")) if url.scheme == "https" else None
        self._turns = threading.BoundedSemaphore(TURNS)
        self._idle: List[socket.socket] = []
        self._lock = threading.Lock()

    def get(self, key: str, first: int, last: int, etag: Optional[str]) -> Reply:
        """The reply's head is here when this returns."""
        headers = {"range": f"bytes={first}-{last}"}
        if etag is not None:
            headers["if-match"] = etag
        connection, reply = self._exchange("GET", key, "", headers, None, genuine.PART_OF)
        try:
            size = total(reply.getheader("Content-Range"), first)
        except OSError:
            connection.close()
            raise
        return _DirectReply(self, connection, reply, size)

    def whole(self, key: str, algorithm: str) -> Reply:
        """The reply's head is here when this returns."""
        connection, reply = self._exchange("GET", key, "", {"x-amz-checksum-mode": "ENABLED"}, None)
        try:
            genuine.refuse_page(reply.getheader("Content-Type"))
            if reply.length is None and not reply.chunked:
                raise genuine.NotTheStores("a reply without a length, which no store sends")
        except OSError:
            connection.close()
            raise
        return _DirectReply(
            self,
            connection,
            reply,
            -1 if reply.length is None else reply.length,
            reply.getheader(f"x-amz-checksum-{algorithm}") or "",
        )

    def put(self, target: Target, body: Body) -> str:
        """Returns when the store has said that it has it."""
        query = f"partNumber={target.part}&uploadId={quote(target.upload, safe='-_.~')}" if target.part else ""
        connection, reply = self._exchange("PUT", target.key, query, target.headers(len(body)), body)
        etag = reply.getheader("ETag") or ""
        try:
            genuine.refuse_contents(reply.length or (reply.chunked and reply.read(1)))
        except (OSError, http.client.HTTPException):
            connection.close()
            raise
        self.done(connection, reply)
        return etag

    def small(self, orders: Sequence[OrderT]) -> Sequence[OrderT]:
        """In one thread, over connections of their own."""
        origin = Origin(*self._address, self._tls, min(CONNECT_S, self._settings.timeout_s), self._settings.timeout_s)
        return [errand.order for errand in errands.run(origin, [_Errand(self, order) for order in orders])]

    def close(self) -> None:
        """Connections that serve nobody."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def head(self, method: str, key: str, query: str, headers: Dict[str, str]) -> bytes:
        """Of a request, signed now. Raises NoCredentialsError, and what looking for credentials raises."""
        from botocore.exceptions import NoCredentialsError

        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        path = self._path + quote(key, safe="/~")
        keys = credentials.get_frozen_credentials()  # refreshed by botocore when their end is near
        signer = Signer(keys.access_key, keys.secret_key, keys.token, self._region)
        signed = signer.sign(method, path, query, {"host": self._host, **headers}, time.time())
        where = f"{path}?{query}" if query else path
        return "".join(
            (
                f"{method} {where} HTTP/1.1\r\n",
                *(f"{name}: {value}\r\n" for name, value in signed.items()),
                f"user-agent: {_AGENT}\r\n\r\n",
            )
        ).encode("latin-1")

    def receive(self, connection: socket.socket, room: memoryview) -> int:
        """How many bytes came; waits for the first. 0: it was closed. Raises OSError."""
        if self._tls is None:
            return connection.recv_into(room)
        # All that has arrived and is done at once: TLS hands it out in pieces of 16 KiB, each with a wait for the
        # interpreter's lock.
        connection.setblocking(False)
        try:
            while True:
                with self._turns:
                    count, wanted = _taken(connection, room)
                if count or wanted is None:
                    return count
                poll = select.poll()
                poll.register(connection, wanted)
                if not poll.poll(self._settings.timeout_s * 1000):
                    raise socket.timeout(f"nothing came for {self._settings.timeout_s:.0f} s")
        finally:
            connection.settimeout(self._settings.timeout_s)

    def done(self, connection: socket.socket, reply: http.client.HTTPResponse) -> None:
        """A reply is not needed any more: if it has been read to its end, the connection may serve another request."""
        if reply.length == 0 and not reply.will_close:
            reply.close()
            with self._lock:
                self._idle.append(connection)
        else:
            reply.close()
            connection.close()

    def _exchange(
        self,
        method: str,
        key: str,
        query: str,
        headers: Dict[str, str],
        body: Optional[Body],
        wanted: int = genuine.DONE,
    ) -> Tuple[socket.socket, http.client.HTTPResponse]:
        """A request and its reply, of that status. Raises ClientError for a refusal, OSError and HTTPException for what
        went wrong on the way.
        """
        head = self.head(method, key, query, headers)
        connection = self._connected()
        try:
            connection.sendall(head)
            early = replies.sent(connection, body)
            reply = early or replies.reply_to(connection, method)
            if reply.status < 300:
                genuine.refuse_others(reply, wanted)
                return connection, reply
            error = replies.refusal(method, reply)
        except BaseException:
            connection.close()
            raise
        try:
            if early is None:
                self.done(connection, reply)
            else:
                connection.close()
            raise error
        finally:
            del error  # its traceback names this frame: together they would keep all that the callers hold

    def _connected(self) -> socket.socket:
        """One that is open, or a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if _usable(connection):
                return connection
            connection.close()
        connection = socket.create_connection(self._address, timeout=min(CONNECT_S, self._settings.timeout_s))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=self._address[0])
            connection.settimeout(self._settings.timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


class _Errand(Generic[OrderT]):
    """An order on its way."""

    def __init__(self, direct: Direct, order: OrderT) -> None:
        self._direct = direct
        self.order = order

    def request(self) -> bytes:
        """Head and contents."""
        given = self.order.contents()
        if given is None:
            return b""
        target, contents = given
        method, headers = ("GET", {}) if target is None else ("PUT", target.headers(len(contents)))
        return self._direct.head(method, self.order.key, "", headers) + contents

    def take(self, contents: memoryview) -> bool:
        """The order knows."""
        return self.order.take(contents)


class _DirectReply:
    def __init__(
        self, owner: Direct, connection: socket.socket, reply: http.client.HTTPResponse, total: int, checksum: str = ""
    ) -> None:
        self._owner, self._connection, self._reply = owner, connection, reply
        self.etag = reply.getheader("ETag") or ""
        self.total, self.checksum = total, checksum
        self._begun = False
        """What came along with the head has been read."""

    def read_into(self, room: memoryview) -> int:
        reply = self._reply
        if self._begun and reply.length is not None:
            # Past what http.client read ahead: straight from the socket.
            count = self._owner.receive(self._connection, room[: reply.length]) if reply.length else 0
            reply.length -= count
            return count
        data = reply.read1(len(room))
        self._begun = self._begun or len(data) < len(room)
        room[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._owner.done(self._connection, self._reply)


def _taken(connection: socket.socket, room: memoryview) -> Tuple[int, Optional[int]]:
    """What a connection has now, as far as there is room, and what to wait for if that was nothing (None: it has
    ended).
    """
    filled = 0
    try:
        while filled < len(room):
            count = connection.recv_into(room[filled:])
            filled += count
            if not count:
                return filled, None
    except ssl.SSLWantReadError:
        return filled, select.POLLIN
    except ssl.SSLWantWriteError:
        return filled, select.POLLOUT
    return filled, None


def _trust(bundle: Optional[str]) -> ssl.SSLContext:
    """As boto3 does: its own list of authorities, or the one that AWS_CA_BUNDLE or the profile names; and not with the
    strictness of Python 3.13, for which certificates of a company's own tools lack something.
    """
    from botocore.httpsession import get_cert_path

    context = ssl.create_default_context(cafile=get_cert_path(bundle or True))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _usable(connection: socket.socket) -> bool:
    """Nothing has arrived on an idle connection, not even its end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)
