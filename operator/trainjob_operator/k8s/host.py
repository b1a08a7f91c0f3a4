"""Watches TrainJobs, their pods and Services with kopf, and hands over every state of every object that it sees. The
one importer of kopf.

Called by `__main__.py` on the replica that leads. Kopf is used for what it is good at (listing, watching, reconnecting)
and for nothing else: no handlers but `on.event`, no state on objects, so it makes no write. When it has to list anew,
what was deleted meanwhile gives no event: each of its lists is told as a gap (`Ears.missed`).

It runs in a thread with a loop of its own, since at its end it cancels every task of its loop, and at its start it
takes the signal handlers of the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Any, cast

import aiohttp
import kopf

from trainjob_api import contract
from trainjob_operator.cluster import ClusterError
from trainjob_operator.k8s.bridge import Bridge, Connect, Ears
from trainjob_operator.k8s.kube import seen_job, seen_pod, seen_service
from trainjob_operator.k8s.rights import Also
from trainjob_operator.nodes import seen_node
from trainjob_operator.process.settings import Settings

REOPEN_S = 60
"""A watch is closed by the server after so long and opened again where it was: a sign of life, even when nothing
happens.
"""
INACTIVE_S = 70.0
"""A watch that brought nothing for so long, not even its end, is dead and opened again."""
CHUNK = 250
"""Objects of one page of the first list."""
BACKOFFS_S = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0, 5.0, 10.0, 10.0, 20.0)
"""Rests between tries while the API server refuses; after the last one the watch ends with an error."""
IDLE_S = 0.5
"""Kopf keeps a task for each object, and in it the last event, for so long: thousands of pods come up at once."""
STOP_S = 3.0
EXPIRED_REST_S, EXPIRED_LONGEST_S = 1.0, 30.0
"""The API server has forgotten the rest of a list: so long after, all is listed anew; each time in a row after twice as
long, up to the longest. A list that costs it more than it can give is not asked for all the time.
"""
EXPIRED_OVER_S = 600.0
"""A watch that lasted so long had all its lists: what expires after it is the first in a row."""
GONE_LOOK_S = 2.0
"""The kind is gone: so often it is looked for again."""
KIND_GONE = (
    f"the CustomResourceDefinition {contract.PLURAL}.{contract.GROUP} is gone, and every TrainJob with it: install it "
    "again (helm upgrade with crds.install=true)"
)

_PODS = ("", "v1", "pods")
_SERVICES = ("", "v1", "services")
_NODES = ("", "v1", "nodes")


_NOT_THE_APIS = json.JSONDecodeError, UnicodeDecodeError, aiohttp.ContentTypeError
"""What kopf falls over in an answer that is no JSON."""


class WatchEnded(Exception):
    """The watch of TrainJobs and pods ended for good: nobody sees changes any more, the process must end."""


async def watch_with_kopf(
    *,
    settings: Settings,
    connect: Connect,
    ears: Ears,
    served: Callable[[], Awaitable[bool]],
    stop: asyncio.Event,
    also: Collection[Also] = (),
) -> None:
    """Tell until `stop` is set: every job and pod when it begins and after a gap, then each that changes. `also`: what
    may be watched too.

    When the kind disappears (its CustomResourceDefinition was deleted) it is waited for: `served` says that it is back.
    Kopf does not see that by itself. Nor does it begin a list anew whose rest the API server has forgotten: then all of
    it is begun anew. (A version that a watch finds forgotten it lists anew by itself.) Raises WatchEnded.
    """
    clock, rests = asyncio.get_running_loop().time, Rests()
    while not stop.is_set():
        begun = clock()
        gone = await _watch_once(settings, connect, ears, stop, also)
        if stop.is_set():
            return
        if not gone:
            rest_s = rests.after(clock() - begun)
            logging.getLogger(__name__).warning(
                "the API server has forgotten what the watch stands on (410): all is listed anew in %.0f s", rest_s
            )
            await _rest(rest_s, stop)
            continue
        logging.getLogger(__name__).warning("%s", KIND_GONE)
        ears.blind(KIND_GONE)
        await _until_served(served, stop)
        ears.blind(None)


class Rests:
    """How long to rest before all is listed anew."""

    def __init__(self) -> None:
        self._before = 0
        """Lists in a row that expired."""

    def after(self, lasted_s: float) -> float:
        """Seconds, after a watch that lasted so long and ended by a list that expired."""
        self._before = 0 if lasted_s >= EXPIRED_OVER_S else self._before
        rest_s = min(EXPIRED_LONGEST_S, EXPIRED_REST_S * 2.0 ** min(self._before, 32))
        self._before += 1
        return rest_s


async def _until_served(served: Callable[[], Awaitable[bool]], stop: asyncio.Event) -> None:
    while not stop.is_set():
        await _rest(GONE_LOOK_S, stop)
        with contextlib.suppress(ClusterError):
            if await served():
                return


async def _rest(seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


async def _watch_once(
    settings: Settings, connect: Connect, ears: Ears, stop: asyncio.Event, also: Collection[Also]
) -> bool:
    """Until `stop` is set, the kind is gone, or a list has expired; whether it is gone. Raises WatchEnded."""
    bridge = Bridge(asyncio.get_running_loop(), connect, ears)
    halt = threading.Event()
    thread = threading.Thread(target=_run, args=(settings, bridge, halt, also), name="watch", daemon=True)
    thread.start()
    stopped = asyncio.create_task(stop.wait(), name="watch-stop")
    waits: set[asyncio.Future[Any]] = {stopped, bridge.broke, bridge.useless}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not bridge.useless.done() and not stop.is_set():
            raise WatchEnded(
                f"the watch of TrainJobs and pods ended: {bridge.broke.result() or 'kopf stopped by itself'}"
            )
    finally:
        stopped.cancel()
        halt.set()
        try:
            await asyncio.wait({bridge.ended}, timeout=STOP_S)
        finally:
            bridge.close()
    return bridge.useless.done() and bridge.useless.result() == HTTPStatus.NOT_FOUND


def _run(settings: Settings, bridge: Bridge, halt: threading.Event, also: Collection[Also]) -> None:
    """The thread: kopf's whole life."""
    said = ""
    try:
        asyncio.run(_operate(settings, bridge, halt, also))
    except BaseException as error:  # a thread's top: whatever ends kopf must be told to the process
        said = _words(error)
    finally:
        bridge.over(said)


def _words(error: BaseException) -> str:
    # The API's errors carry its whole answer behind their first argument, the message.
    words = f"{type(error).__name__}: {error.args[0] if error.args else 'no words'}"
    if isinstance(error, _NOT_THE_APIS):
        words += "; something between here and the API server answers in its place"
    return words


async def _operate(settings: Settings, bridge: Bridge, halt: threading.Event, also: Collection[Also]) -> None:
    others = asyncio.all_tasks()
    try:
        tasks = await kopf.spawn_tasks(
            registry=_registry(bridge, also),
            settings=_kopf_settings(),
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            # Else it asks who the user is, and a container's user need have no name.
            identity=cast(Any, settings.pod_name),
            standalone=True,
            stop_flag=halt,
        )
        for task in tasks:
            task.add_done_callback(functools.partial(_gave_up, bridge))
        await kopf.run_tasks(tasks, ignored=others)
    finally:
        halt.set()  # kopf waits for it in an executor's thread, which would outlive it


def _gave_up(bridge: Bridge, task: asyncio.Task[None]) -> None:
    """One of kopf's tasks is over. When it broke, nothing is watched from now on, and that is told at once: kopf waits
    for its other tasks, and one of them may wait for a login for ever.
    """
    error = None if task.cancelled() else task.exception()
    if error is not None:
        bridge.gave_up(_words(error))


def _registry(bridge: Bridge, also: Collection[Also]) -> kopf.OperatorRegistry:
    """Our own registry: kopf's global one would try every client library it finds for a login."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def login(**_: Any) -> kopf.AiohttpSession:
        server, session = await bridge.session()
        return kopf.AiohttpSession(server=server, aiohttp_session=session)

    @kopf.on.event(contract.GROUP, contract.VERSION, contract.PLURAL, registry=registry)
    async def job_changed(event: Any, **_: Any) -> None:
        bridge.tell(seen_job(event["object"], event["type"] == "DELETED"))

    @kopf.on.event(*_PODS, registry=registry, labels={contract.LABEL_JOB: kopf.PRESENT})
    async def pod_changed(event: Any, **_: Any) -> None:
        bridge.tell(seen_pod(event["object"], event["type"] == "DELETED"))

    if Also.SERVICES in also:

        @kopf.on.event(*_SERVICES, registry=registry, labels={contract.LABEL_JOB: kopf.PRESENT})
        async def service_changed(event: Any, **_: Any) -> None:
            bridge.tell(seen_service(event["object"], event["type"] == "DELETED"))

    if Also.NODES in also:

        @kopf.on.event(*_NODES, registry=registry)
        async def node_changed(event: Any, **_: Any) -> None:
            if event["type"] == "DELETED":
                bridge.node_gone(event["object"]["metadata"]["name"])
            else:
                bridge.tell_node(seen_node(event["object"]))

    return registry


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None
    settings.scanning.disabled = True  # no rights to list CRDs and namespaces are needed
    settings.posting.enabled = False
    # The API server filters; kopf's own filters come after all the work of an event is done.
    settings.watching.label_selectors[_PODS] = contract.LABEL_JOB
    settings.watching.label_selectors[_SERVICES] = contract.LABEL_JOB
    settings.watching.server_timeout = REOPEN_S
    settings.watching.inactivity_timeout = INACTIVE_S
    settings.watching.chunk_size = CHUNK
    settings.queueing.idle_timeout = IDLE_S
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = BACKOFFS_S
    settings.persistence.finalizer = f"{contract.GROUP}/unused"
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """Keeps nothing on the object; what kopf would compare is not even built."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """Keeps nothing on the object."""

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence
