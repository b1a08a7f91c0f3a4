"""Requests to an object store through boto3: one client a process, every transient failure tried again with full jitter
within a deadline.

Used by the parts of the S3 store. boto3 is imported here, at the first request, and nowhere else; its own retries are
off, so that ours alone decide. A request is a function of the client that may run several times. Safe for several
threads.
"""

from __future__ import annotations

import atexit
import random
import ssl
import threading
import time
from http.client import HTTPException
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.stores.s3 import bodies as s3_bodies
from trainjob.checkpoint.stores.s3 import boto as s3_boto
from trainjob.checkpoint.stores.s3 import errors as s3_errors
from trainjob.checkpoint.stores.s3 import genuine, replies
from trainjob.checkpoint.stores.s3.bodies import CONNECT_S
from trainjob.checkpoint.stores.s3.errors import Answer, Where
from trainjob.checkpoint.stores.s3.settings import Settings, stands_still
from trainjob.checkpoint.stores.s3.ways import Bodies

CONNECTIONS = 32
"""Requests that carry file contents at once, all files together: stores give each connection some 90 MB/s."""
SPARE_CONNECTIONS = 8
"""For small requests beside them."""
PAUSE_S = 0.1
PAUSE_CAP_S = 5.0
T = TypeVar("T")
Work = Callable[[Any], T]

_clients: Dict[Settings, Requests] = {}
_clients_lock = threading.Lock()
_models: List[Any] = []
"""botocore's descriptions of services, read once: they are most of what another client costs."""


class Absent(Exception):
    """There is no such object, or upload."""


class Empty(Exception):
    """A range was asked for of an object that has no bytes."""


class Taken(Exception):
    """The condition of a write did not hold: the name is taken. `sent_before`: perhaps by an earlier try of this
    very request.
    """

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
        seconds = time.monotonic() - self._since
        if stands_still(seconds, self._moved, self._allowed):
            raise Stalled(f"the stream stands still: {self._moved} bytes in {seconds:.0f} s")


def requests_for(settings: Settings) -> Requests:
    """The process's one for these settings."""
    with _clients_lock:
        if settings not in _clients:
            _clients[settings] = Requests(settings)
        return _clients[settings]


def _close() -> None:
    for requests in list(_clients.values()):
        requests.close()


atexit.register(_close)


class _Tries:
    """What is known of a request that failed before."""

    def __init__(self, conditional: bool) -> None:
        self.conditional = conditional
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
        self.spare = threading.BoundedSemaphore(CONNECTIONS)
        """Held by threads that move parts of a file beside its first one: what bounds threads, however many files
        there are.
        """
        self._lock = threading.Lock()
        self._connected: Optional[_Connected] = None

    @property
    def endpoint(self) -> str:
        """Where requests go, for people."""
        return self.settings.endpoint or "https://s3.amazonaws.com"

    def run(self, work: Work[T], where: Where, conditional: bool = False) -> T:
        """What `work` returns, called with boto3's client. Raises Absent, Empty, StoreError, and Taken if a
        condition goes with the request.
        """
        return self._try(lambda connected: work(connected.client), where, conditional)

    def move(self, work: Callable[[Bodies], T], where: Where, conditional: bool = False) -> T:
        """The same for work that carries file contents."""
        return self._try(lambda connected: connected.move(work, where.bucket), where, conditional)

    def close(self) -> None:
        """Connections that are kept for later: at the end of the process."""
        if self._connected is not None:
            self._connected.close()

    def _try(self, work: Callable[[_Connected], T], where: Where, conditional: bool) -> T:
        state = _Tries(conditional)
        while True:
            connected = self._get()
            try:
                return work(connected)
            except connected.failures as error:
                # All is said in here: a name that outlives this block would keep the error, and with it all that the
                # callers hold, in a cycle.
                pause = self._pause(state, s3_errors.answer(error), connected, where, error)
            time.sleep(pause)

    def _pause(self, state: _Tries, given: Answer, connected: _Connected, where: Where, error: BaseException) -> float:
        """How long to wait before the next try. Raises when there is none."""
        meaning = s3_errors.meaning(given)
        if meaning == s3_errors.ABSENT:
            raise Absent from error
        if meaning == s3_errors.EMPTY:
            raise Empty from error
        if meaning == s3_errors.TAKEN and state.conditional:
            raise Taken(state.sent) from error
        if meaning == s3_errors.CREDENTIALS and not state.fresh:
            state.fresh = True
            self._forget(connected)
            return 0.0
        now = time.monotonic()
        state.since = state.since or now  # not since the begin: a large part may have taken longer than the deadline
        pause = random.uniform(0, min(PAUSE_CAP_S, PAUSE_S * 2**state.count))
        if meaning not in (s3_errors.RETRY, s3_errors.TAKEN) or now + pause > state.since + self.settings.retry_s:
            raise s3_errors.explain(given, where, now - state.since) from error
        state.sent = state.sent or _may_have_arrived(given)
        state.count += 1
        return pause

    def _get(self) -> _Connected:
        with self._lock:
            if self._connected is None:
                self._connected = _connect(self.settings)
            return self._connected

    def _forget(self, connected: _Connected) -> None:
        """The next request looks for credentials anew: files and variables may say something else by now."""
        with self._lock:
            if self._connected is connected:
                self._connected = None


class _Connected:
    """boto3's client, and what moves file contents beside it."""

    def __init__(
        self, client: Any, session: Any, settings: Settings, failures: Tuple[Type[BaseException], ...]
    ) -> None:
        self.client = client
        self.failures = failures
        self._session, self._settings = session, settings
        self._lock = threading.Lock()
        self._bodies: Dict[str, Bodies] = {}

    def move(self, work: Callable[[Bodies], T], bucket: str) -> T:
        """A bucket that turns out to be in another region is left to boto3, which follows."""
        with self._lock:
            if bucket not in self._bodies:
                self._bodies[bucket] = s3_bodies.bodies(self.client, self._session, self._settings, bucket)
            way = self._bodies[bucket]
        try:
            return work(way)
        except self.failures as error:
            if isinstance(way, s3_boto.Boto) or s3_errors.answer(error).code not in s3_errors.MOVED:
                raise
        with self._lock:
            way = self._bodies[bucket] = s3_boto.Boto(self.client, bucket)
        return work(way)

    def close(self) -> None:
        """What nobody uses now."""
        for way in list(self._bodies.values()):
            way.close()
        self.client.close()


def _may_have_arrived(given: Answer) -> bool:
    return given.code not in ("EndpointConnectionError", "ConnectTimeoutError", "SlowDown", "BadDigest")


def _readable(bundle: Optional[str]) -> None:
    """Raises StoreError for a file of authorities that is none: boto3 would say that the store is not to be trusted."""
    if not bundle:
        return
    try:
        ssl.create_default_context(cafile=bundle)
    except OSError as error:
        raise StoreError(
            errors.INVALID,
            f"AWS_CA_BUNDLE={bundle} is no file with certificates in PEM that can be read ({error}). Check the "
            "variable; on a cluster the ConfigMap of spec.checkpoint.s3.caConfigMap (its key is ca.crt).",
        ) from error


def _connect(settings: Settings) -> _Connected:
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError
    except ImportError as error:
        raise StoreError(
            errors.INVALID,
            f"storage at s3:// needs boto3, which this Python cannot import ({error}). Install it where the workers "
            "run: pip install boto3",
        ) from error
    config = Config(
        connect_timeout=min(CONNECT_S, settings.timeout_s),
        read_timeout=settings.timeout_s,
        max_pool_connections=CONNECTIONS + SPARE_CONNECTIONS,
        retries={"total_max_attempts": 1},
        tcp_keepalive=True,
        # Checksums are ours, sent with every write; a hash over the contents besides would only cost time. Those of
        # replies are, too: with a range some stores send the whole object's, and boto3 would compare the two.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if settings.path_style else "auto", "payload_signing_enabled": False},
    )
    try:
        core = botocore.session.get_session()
        if _models:
            core.register_component("data_loader", _models[0])
        else:
            _models.append(core.get_component("data_loader"))
        _readable(core.get_config_variable("ca_bundle"))
        session = boto3.session.Session(botocore_session=core)
        region = settings.region or session.region_name or "us-east-1"
        client = session.client("s3", endpoint_url=settings.endpoint, region_name=region, config=config)
        replies.only_whole(client)
        genuine.follows_nobody(client)
    except (BotoCoreError, ValueError) as error:
        raise StoreError(
            errors.INVALID,
            f"the settings for s3:// are not usable ({error}). Check the AWS_* variables (on a cluster: "
            "spec.checkpoint.s3).",
        ) from error
    return _Connected(
        client,
        core,
        settings,
        (BotoCoreError, ClientError, ResponseParserError, HTTPError, HTTPException, OSError, RecursionError),
    )
