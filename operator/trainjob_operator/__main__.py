"""`python -m trainjob_operator`: one replica of the operator, put together and taken apart in order.

Up: settings, logs, API server (CRD and rights are there), health server, Lease, certificates, coordinator, route, turns
and watch. Down, on SIGTERM: the same backwards, exit 0. What cannot go on ends the process with one line and exit 1; a
lost Lease at once, since another replica may lead by then. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from trainjob_api import contract
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.agents.owners import owner_in
from trainjob_operator.agents.routing import NoRoute, point_here
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import ClusterError, Unavailable
from trainjob_operator.core.model import Installation
from trainjob_operator.k8s.bridge import Ears
from trainjob_operator.k8s.claims import Claims
from trainjob_operator.k8s.host import WatchEnded, watch_with_kopf
from trainjob_operator.k8s.kube import KubeCluster
from trainjob_operator.k8s.kubeapi import Api
from trainjob_operator.k8s.leading import Keeper
from trainjob_operator.k8s.lease import Leadership, first_transition
from trainjob_operator.k8s.rights import Also, may_also_watch, missing_rights, needed_rights
from trainjob_operator.k8s.served import fields_not_served, knows_trainjobs
from trainjob_operator.loop.means import Hears, Means
from trainjob_operator.loop.reconciler import Reconciler
from trainjob_operator.loop.recorder import Recorder, recorded
from trainjob_operator.process.garbage import GarbageCollection
from trainjob_operator.process.health import Health, HealthServer
from trainjob_operator.process.limits import raise_open_files
from trainjob_operator.process.logs import set_up
from trainjob_operator.process.metrics import Metrics
from trainjob_operator.process.settings import BadSettings, HelpShown, Settings, read_settings
from trainjob_operator.trust.certificates import BadSecret, Trust, ensure
from trainjob_operator.trust.tokens import TokenCheck

EXIT_OK = 0
"""Told to stop (SIGTERM, SIGINT), and everything was closed in order; or `--help`."""
EXIT_ERROR = 1
"""It cannot do its work, or not go on; the last line of the log says why."""
EXIT_USAGE = 2
"""A flag or variable is wrong; one line on standard error names it."""

API_PATIENCE_S = 10.0
"""An API server that does not answer at the start is asked for so long: it may be about to come back."""
API_RETRY_S = 1.0
ROUTE_EVERY_S = 60.0
"""The EndpointSlice is looked at this often; it is written only if somebody changed it."""
STOP_WITHIN_S = 15.0
"""What is not closed so long after SIGTERM is left to the end of the process."""
SAY_S = 1.0
"""For the last line of a process that ends at once."""
RESTART_RULES_SINCE = (1, 35)
_INSTALL_CRD = f"helm upgrade with crds.install=true, or kubectl apply -f crds/{contract.GROUP}_{contract.PLURAL}.yaml"
NO_CRD = (
    f"the CustomResourceDefinition {contract.PLURAL}.{contract.GROUP} ({contract.VERSION}) is not installed: "
    f"{_INSTALL_CRD}"
)
OLD_CRD = f"the installed CustomResourceDefinition is older than this operator and would drop {{}}: {_INSTALL_CRD}"
NO_SOCKET = "a socket could not be opened: %s; is another process listening on --coordinator-port or --metrics-port?"

T = TypeVar("T")
_log = logging.getLogger("trainjob_operator")


class CannotRun(Exception):
    """The process cannot do its work; each line says what is wrong and what mends it."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def main() -> int:
    """The exit code."""
    try:
        settings = read_settings(sys.argv[1:], os.environ)
    except HelpShown:
        return EXIT_OK
    except BadSettings as error:
        print(f"trainjob-operator: {error}", file=sys.stderr)
        return EXIT_USAGE
    set_up(settings.log_format, settings.log_level, sys.stderr)
    raise_open_files()
    try:
        return asyncio.run(_until_told(Operator(settings)))
    except CannotRun as error:
        for line in error.lines:
            _log.error("%s", line)
    except (ClusterError, BadSecret, NoRoute, WatchEnded) as error:
        _log.error("%s", error)
    except OSError as error:
        _log.error(NO_SOCKET, error)
    except Exception:
        _log.exception("the operator ended on an error that nobody expected")
    return EXIT_ERROR


async def _until_told(operator: Operator) -> int:
    """Run until SIGTERM or SIGINT, then end in order."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = asyncio.create_task(operator.run(), name="operator")
    waiting = asyncio.create_task(told.wait(), name="signals")
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        _log.info("told to stop")
        running.cancel()
        await asyncio.wait({running}, timeout=STOP_WITHIN_S)
        if not running.done():
            _exit_now(f"not everything could be closed within {STOP_WITHIN_S:.0f} s")
    waiting.cancel()
    if not running.cancelled():
        running.result()
    _log.info("stopped")
    return EXIT_OK


class Operator:
    """The parts of one replica."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._health = Health(self._clock)
        self._metrics = Metrics(self._health)

    async def run(self) -> None:
        """Until cancelled; whatever was opened is closed in reverse order. Raises what makes it impossible to go on."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as closing:
            api = await Api.connect(kubeconfig=settings.kubeconfig)
            closing.push_async_callback(api.close)
            api.on_call = self._called
            version = await self._check(api)
            server = HealthServer(self._health, self._metrics.exposition)
            port = await server.start(settings.listen_host, settings.metrics_port)
            closing.push_async_callback(server.stop)
            closing.push_async_callback(_stop, asyncio.create_task(self._health.measure_lag(), name="lag"))
            _log.info("ready: %s of Kubernetes %s, /metrics on port %d", settings.pod_name, version, port)
            transition = await self._become_leader(api, closing)
            await self._lead(api, transition, restart_rules(version), closing)

    # --- Up -----------------------------------------------------------------------------------------------------------

    async def _check(self, api: Api) -> str:
        """The API server answers, knows TrainJobs, and lets us do our work; its version. Raises CannotRun,
        ClusterError.
        """
        version = await _patiently(lambda: api.document("/version"))
        if not await _patiently(lambda: knows_trainjobs(api)):
            raise CannotRun(NO_CRD)
        dropped = await _patiently(lambda: fields_not_served(api))
        if dropped:
            raise CannotRun(OLD_CRD.format(", ".join(dropped)))
        settings = self._settings
        names = {
            "lease": settings.lease,
            "secret": settings.secret,
            "service": settings.service,
            "claim": contract.CLAIM_LEASE,
        }
        rights = needed_rights(settings.namespaces, settings.pod_namespace, names)
        missing = await _patiently(lambda: missing_rights(api, rights))
        if missing:
            raise CannotRun(*(right.missing() for right in missing))
        return str(version.get("gitVersion") or f"v{version.get('major')}.{version.get('minor')}")

    async def _become_leader(self, api: Api, closing: contextlib.AsyncExitStack) -> int:
        """Wait for the Lease and keep it; the transition number."""
        settings, main = self._settings, asyncio.get_running_loop()
        if not settings.leader_election:
            return first_transition(self._clock.now())

        def called(*call: Any) -> None:
            main.call_soon_threadsafe(self._called, *call)

        async def make() -> tuple[Leadership, Api]:
            apart = await Api.connect(kubeconfig=settings.kubeconfig)
            apart.on_call = called
            return Leadership(apart, settings.pod_namespace, settings.lease, settings.pod_name, self._clock), apart

        # Another replica may act as soon as the Lease is gone: this one must not, not even to clean up.
        keeper = Keeper(make, _exit_now, self._clock)
        closing.push_async_callback(keeper.release)
        transition = await keeper.acquire()
        api.fence = keeper.check
        return transition

    async def _lead(self, api: Api, transition: int, rules: bool, closing: contextlib.AsyncExitStack) -> None:
        """Listen to agents, then take turns until cancelled."""
        settings, clock = self._settings, self._clock
        trust = await ensure(api, settings.pod_namespace, settings.secret, settings.dns_names, clock)
        also = await _patiently(lambda: may_also_watch(api, settings.namespaces))
        cluster = KubeCluster(api, settings.namespaces, clock, services=Also.SERVICES in also)
        recorder = Recorder(cluster.create_event, clock)
        coordinator = Coordinator(
            clock=clock,
            authenticate=TokenCheck(api, contract.TOKEN_AUDIENCE, settings.namespaces, clock),
            find_owner=owner_in(cluster),
            master_key=trust.master_key,
            transition=transition,
        )
        url = await coordinator.start(settings.listen_host, settings.coordinator_port, trust.ssl_context)
        closing.push_async_callback(coordinator.stop)
        port = urlsplit(url).port or settings.coordinator_port
        installation = self._installation(trust, rules)
        claims = Claims(api, f"{settings.pod_namespace}/{settings.lease}", clock)
        reconciler = Reconciler(
            Means(cluster=recorded(cluster, recorder), agents=coordinator, clock=clock),
            installation,
            workers=settings.workers,
            hears=Hears(on_job=self._metrics.job, on_turn=self._metrics.turn),
            claims=claims,
        )
        await point_here(api, settings.pod_namespace, settings.service, settings.pod_ip, port)
        self._health.leads(reconciler)
        self._metrics.leads(reconciler, coordinator, recorder)
        _log.info(
            "leading: transition %d, agents come to %s (port %d here)", transition, settings.coordinator_url, port
        )
        watch_stop = asyncio.Event()
        closing.callback(watch_stop.set)
        await _all_of(
            reconciler.run(),
            watch_with_kopf(
                settings=settings,
                connect=api.connection,
                ears=Ears(
                    tell=cluster.tell,
                    missed=cluster.missed,
                    alive=self._health.watch_lives,
                    blind=self._health.blind,
                    on_call=self._watch_called,
                ),
                served=lambda: knows_trainjobs(api),
                stop=watch_stop,
                also=also,
            ),
            claims.keep(reconciler.namespaces),
            trust.keep_fresh(),
            self._keep_route(api, port),
            GarbageCollection(clock).keep(),
        )

    def _installation(self, trust: Trust, rules: bool) -> Installation:
        settings = self._settings
        return Installation(
            coordinator_url=settings.coordinator_url,
            agent_command=(contract.RUNTIME_START,),
            runtime_image=settings.runtime_image,
            runtime_pull_policy=settings.runtime_pull_policy,
            coordinator_ca=trust.ca_pem,
            token_audience=contract.TOKEN_AUDIENCE,
            restart_rules=rules,
        )

    async def _keep_route(self, api: Api, port: int) -> None:
        """Somebody may delete or change the EndpointSlice."""
        settings = self._settings
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + ROUTE_EVERY_S)
            try:
                if await point_here(api, settings.pod_namespace, settings.service, settings.pod_ip, port):
                    _log.warning(
                        "the EndpointSlice of Service %s had been changed; agents are led here again", settings.service
                    )
            except (ClusterError, NoRoute) as error:
                _log.warning("agents may not find this operator: %s", error)

    # --- Told by the clients ------------------------------------------------------------------------------------------

    def _called(self, method: str, path: str, code: int, seconds: float) -> None:
        self._metrics.call("operator", method, path, code, seconds)
        self._note(code)

    def _watch_called(self, method: str, path: str, code: int, seconds: float) -> None:
        self._metrics.call("watch", method, path, code, seconds)
        self._note(code)

    def _note(self, code: int) -> None:
        if code == 0 or code >= 500:
            self._health.api_failed()
        else:
            self._health.api_answered()


def restart_rules(version: str) -> bool:
    """Whether a server of this version (v1.35.2) knows container restart rules."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= RESTART_RULES_SINCE


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Try again while the API server does not answer, for API_PATIENCE_S. Raises the last error."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + API_PATIENCE_S
    while True:
        try:
            return await call()
        except ClusterError as error:
            if not isinstance(error, Unavailable) or loop.time() + API_RETRY_S > ends:
                raise
        await asyncio.sleep(API_RETRY_S)


async def _all_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run them beside each other; the first that fails ends all, and its error is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _exit_now(why: str) -> NoReturn:
    """Without any clean-up, and without waiting for who may hold the log for good."""

    def say() -> None:
        _log.critical("the process ends: %s", why)
        sys.stderr.flush()

    try:
        saying = threading.Thread(target=say, daemon=True)
        saying.start()
        saying.join(SAY_S)
    finally:
        os._exit(EXIT_ERROR)


if __name__ == "__main__":
    sys.exit(main())
