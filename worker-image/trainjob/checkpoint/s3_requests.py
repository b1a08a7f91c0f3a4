"""Requests to an object store through boto3: one client a process, every transient failure tried again with full jitter within a deadline.

Used by the parts of the S3 store. boto3 is imported here, at the first request, and nowhere else; its own retries are off, so that ours alone
decide. A request is a function of the client that may run several times. Safe for several threads.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Callable, Dict, Tuple, Type, TypeVar

from trainjob.checkpoint import errors, s3_errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.s3_errors import Answer, Where
from trainjob.checkpoint.s3_settings import Settings

CONNECTIONS = 16
"""Requests that carry file contents at once, all files together."""
SPARE_CONNECTIONS = 8
"""For small requests beside them."""
CONNECT_S = 10.0
PAUSE_S = 0.1
PAUSE_CAP_S = 5.0
SLOWEST = 8 << 10
"""Bytes a second: a stream below this counts as standing still."""
T = TypeVar("T")
Work = Callable[[Any], T]

_clients: Dict[Settings, Requests] = {}
_clients_lock = threading.Lock()


class Absent(Exception):
    """There is no such object, or upload."""


class Empty(Exception):
    """A range was asked for of an object that has no bytes."""


class Taken(Exception):
    """The condition of a write did not hold: the name is taken. `sent_before`: perhaps by an earlier try of this very request."""

    def __init__(self, sent_before: bool) -> None:
        super().__init__()
        self.sent_before = sent_before


class Stalled(OSError):
    """A stream that stands still."""


class Pace:
    """Cuts a stream that trickles: a socket's own time-out is begun anew by every byte."""

    def __init__(self, timeout_s: float) -> None:
        self._since = time.monotonic()
        self._allowed = timeout_s
        self._moved = 0

    def moved(self, count: int) -> None:
        """Raises Stalled."""
        self._moved += count
        if time.monotonic() - self._since > self._allowed + self._moved / SLOWEST:
            raise Stalled(f"the stream stands still: {self._moved} bytes in {time.monotonic() - self._since:.0f} s")


def requests_for(settings: Settings) -> Requests:
    """The process's one for these settings."""
    with _clients_lock:
        if settings not in _clients:
            _clients[settings] = Requests(settings)
        return _clients[settings]


class _Tries:
    """What is known of a request that failed before."""

    def __init__(self) -> None:
        self.since = 0.0
        self.count = 0
        self.sent = False
        """One of them may have been carried out all the same."""
        self.fresh = False
        """Credentials were looked for anew."""


class Requests:
    """Runs requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.slots = threading.BoundedSemaphore(CONNECTIONS)
        """Held while file contents move: what bounds memory and connections."""
        self._lock = threading.Lock()
        self._client: Any = None
        self._failures: Tuple[Type[BaseException], ...] = ()

    @property
    def endpoint(self) -> str:
        """Where requests go, for people."""
        return self.settings.endpoint or "https://s3.amazonaws.com"

    def run(self, work: Work[T], where: Where) -> T:
        """What `work` returns. Raises Absent, Empty, Taken or StoreError."""
        state = _Tries()
        while True:
            client = self._get()
            try:
                return work(client)
            except self._failures as error:
                # All is said in here: a name that outlives this block would keep the error, and with it all that the callers hold, in a cycle.
                pause = self._pause(state, s3_errors.answer(error), client, where, error)
            time.sleep(pause)

    def _pause(self, state: _Tries, given: Answer, client: Any, where: Where, error: BaseException) -> float:
        """How long to wait before the next try. Raises when there is none."""
        meaning = s3_errors.meaning(given)
        if meaning == s3_errors.ABSENT:
            raise Absent from error
        if meaning == s3_errors.EMPTY:
            raise Empty from error
        if meaning == s3_errors.TAKEN:
            raise Taken(state.sent) from error
        if meaning == s3_errors.CREDENTIALS and not state.fresh:
            state.fresh = True
            self._forget(client)
            return 0.0
        now = time.monotonic()
        state.since = state.since or now  # not since the begin: a large part may have taken longer than the deadline
        pause = random.uniform(0, min(PAUSE_CAP_S, PAUSE_S * 2**state.count))
        if meaning != s3_errors.RETRY or now + pause > state.since + self.settings.retry_s:
            raise s3_errors.explain(given, where, now - state.since) from error
        state.sent = state.sent or _may_have_arrived(given)
        state.count += 1
        return pause

    def _get(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client, self._failures = _connect(self.settings)
            return self._client

    def _forget(self, client: Any) -> None:
        """The next request looks for credentials anew: files and variables may say something else by now."""
        with self._lock:
            if self._client is client:
                self._client = None


def _may_have_arrived(given: Answer) -> bool:
    return given.code not in ("EndpointConnectionError", "ConnectTimeoutError", "SlowDown", "BadDigest")


def _connect(settings: Settings) -> Tuple[Any, Tuple[Type[BaseException], ...]]:
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError
    except ImportError as error:
        raise StoreError(
            errors.INVALID,
            f"storage at s3:// needs boto3, which this Python cannot import ({error}). Install it where the workers run: pip install trainjob[worker]",
        ) from error
    config = Config(
        connect_timeout=min(CONNECT_S, settings.timeout_s),
        read_timeout=settings.timeout_s,
        max_pool_connections=CONNECTIONS + SPARE_CONNECTIONS,
        retries={"total_max_attempts": 1},
        tcp_keepalive=True,
        # Checksums are ours, sent with every write; a hash over the contents besides would only cost time.
        request_checksum_calculation="when_required",
        s3={"addressing_style": "path" if settings.path_style else "auto", "payload_signing_enabled": False},
    )
    try:
        session = boto3.session.Session()
        region = settings.region or session.region_name or "us-east-1"
        client = session.client("s3", endpoint_url=settings.endpoint, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise StoreError(errors.INVALID, f"the settings for s3:// are not usable ({error}). Check the AWS_* variables and spec.checkpoint.s3.") from error
    return client, (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError)
