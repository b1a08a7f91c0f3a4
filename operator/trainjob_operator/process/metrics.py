"""What Prometheus sees of the operator. The parts tell `Metrics` what happened; what can be asked for is asked at each
scrape.

Made by `__main__.py`. The one module that imports prometheus_client. Labels are bounded: verbs, codes, kinds, reasons
of the contract; never a job's name or a user's word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.ends.causes import cause_of
from trainjob_operator.core.parts import first_step_ms, total_ms
from trainjob_operator.loop.means import Turn
from trainjob_operator.process.health import Health

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_KINDS = (
    contract.PLURAL,
    "pods",
    "services",
    "events",
    "leases",
    "secrets",
    "endpointslices",
    "tokenreviews",
    "selfsubjectaccessreviews",
)


class Coordinator(Protocol):
    """What is asked of the coordinator."""

    syncs: int

    @property
    def refusals(self) -> Mapping[str, int]: ...
    def connected(self) -> int: ...
    def unknown(self) -> int: ...


class Recorder(Protocol):
    """What is asked of the recorder."""

    written: int
    withheld: int
    failed: int


class Queue(Protocol):
    """What is asked of the reconciler."""

    def waiting(self) -> int: ...


class Family(NamedTuple):
    """One metric as the page of a scrape has it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """One registry a process."""

    def __init__(self, health: Health) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._jobs: dict[JobKey, tuple[str, int]] = {}
        """Phase and attempt as the job was committed last."""
        self._turns = Counter(
            "trainjob_turns", "Turns of jobs, by outcome: ok, conflict, error.", ["outcome"], registry=self.registry
        )
        self._turn_seconds = Histogram(
            "trainjob_turn_seconds", "Length of a turn.", buckets=_SECONDS, registry=self.registry
        )
        self._restarts = Counter(
            "trainjob_restarts", "Attempts that began after the first, by cause.", ["reason"], registry=self.registry
        )
        self._recovery = Histogram(
            "trainjob_recovery_seconds",
            "Parts of restarts, as in status.attempt.partsMs, and their sum as total; of starts that got so far.",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._recovered: dict[JobKey, int] = {}
        """The newest attempt of each job whose parts were taken."""
        self._pods_created = Counter("trainjob_pods_created", "Worker pods created.", registry=self.registry)
        self._pods_deleted = Counter("trainjob_pods_deleted", "Worker pods deleted.", registry=self.registry)
        labels = ["client", "verb", "resource", "code"]
        self._calls = Counter(
            "trainjob_api_calls", "Calls to the API server; code 0: no answer.", labels, registry=self.registry
        )
        self._call_seconds = Histogram(
            "trainjob_api_call_seconds", "Length of a call.", ["verb"], buckets=_SECONDS, registry=self.registry
        )
        self._leader = Gauge("trainjob_leader", "1 where this replica leads.", registry=self.registry)
        self._gauge("trainjob_loop_lag_seconds", "How late the event loop woke up last.", lambda: health.lag_s)
        self._gauge(
            "trainjob_watch_age_seconds", "Since the watch last showed life; 0 for a follower.", health.watch_age_s
        )

    def exposition(self) -> tuple[bytes, str]:
        """The page of a scrape and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def families(self) -> list[Family]:
        """Every metric there is, by name, whether or not it has a value yet."""
        known = list(self.registry._collector_to_names)
        found = [
            (family, collector)
            for collector in known
            if isinstance(collector, MetricWrapperBase)
            for family in collector.describe()
        ]
        asked = [
            (family, family)
            for collector in known
            if not isinstance(collector, MetricWrapperBase)
            for family in collector.collect()
        ]
        return sorted(_family(family, getattr(owner, "_labelnames", ())) for family, owner in [*found, *asked])

    # --- Told ---------------------------------------------------------------------------------------------------------

    def leads(self, queue: Queue, coordinator: Coordinator, recorder: Recorder) -> None:
        """This replica takes turns from now on."""
        self._leader.set(1)
        self._gauge(
            "trainjob_queue_depth",
            "Jobs that wait for a turn, those due later included.",
            lambda: float(queue.waiting()),
        )
        self._gauge("trainjob_agents_connected", "Open polls of agents.", lambda: float(coordinator.connected()))
        self._gauge(
            "trainjob_unknown_connections",
            "Connections that have not shown a good token yet.",
            lambda: float(coordinator.unknown()),
        )
        self.registry.register(_Asked(self._jobs, coordinator, recorder))

    def turn(self, turn: Turn) -> None:
        """A turn is over; what became of its job, `job` is told."""
        self._turns.labels(turn.outcome).inc()
        self._turn_seconds.observe(turn.seconds)
        if turn.gone:
            self._jobs.pop(turn.key, None)
            self._recovered.pop(turn.key, None)

    def job(self, job: TrainJob) -> None:
        """A job as it was committed."""
        self._recovery_of(job)
        attempt = job.status.attempt
        number = attempt.number if attempt is not None else 0
        known = self._jobs.get(job.key)
        # A job that is seen for the first time tells nothing: its attempt may have begun under the leader before.
        if attempt is not None and known is not None and number > known[1] and cause_of(attempt.cause).restart:
            self._restarts.labels(attempt.cause).inc()
        self._jobs[job.key] = (job.status.phase or "Unknown", number)

    def call(self, client: str, method: str, path: str, code: int, seconds: float) -> None:
        """A call to the API server is over; `client` tells our own calls from the watch's."""
        resource = resource_of(path)
        self._calls.labels(client, method, resource, str(code)).inc()
        self._call_seconds.labels(method).observe(seconds)
        if resource == "pods" and code in (200, 201, 202):
            if method == "POST":
                self._pods_created.inc()
            elif method == "DELETE":
                self._pods_deleted.inc()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _gauge(self, name: str, what: str, ask: Callable[[], float]) -> None:
        Gauge(name, what, registry=self.registry).set_function(ask)

    def _recovery_of(self, job: TrainJob) -> None:
        """Each restart once, when it is over: its first step is made, or its attempt has ended."""
        status, known = job.status, self._recovered.get(job.key)
        over = [(entry.attempt, entry.cause, entry.parts_ms) for entry in status.history]
        attempt = status.attempt
        # One that has ended stands in the history, too.
        if attempt is not None and attempt.state == "Running" and first_step_ms(attempt.parts_ms) is not None:
            over.append((attempt.number, attempt.cause, attempt.parts_ms))
        for number, cause, parts in over:
            # Of a job that is seen for the first time the leader before has taken them.
            if known is not None and number > known and parts is not None and cause_of(cause).restart:
                for name, value in parts.model_dump().items():
                    if value is not None:
                        self._recovery.labels(name).observe(value / 1000)
                self._recovery.labels("total").observe(total_ms(parts) / 1000)
        self._recovered[job.key] = max([known or 0, *(number for number, _, _ in over)])


class _Asked:
    """What is counted elsewhere, read at each scrape."""

    def __init__(self, jobs: Mapping[JobKey, tuple[str, int]], coordinator: Coordinator, recorder: Recorder) -> None:
        self._jobs = jobs
        self._coordinator = coordinator
        self._recorder = recorder

    def collect(self) -> Iterable[Metric]:
        phases: dict[str, int] = {}
        for phase, _ in self._jobs.values():
            phases[phase] = phases.get(phase, 0) + 1
        jobs = GaugeMetricFamily("trainjob_jobs", "Jobs by phase.", labels=["phase"])
        for phase, count in sorted(phases.items()):
            jobs.add_metric([phase], count)
        yield jobs
        yield CounterMetricFamily("trainjob_syncs", "Syncs of agents.", value=self._coordinator.syncs)
        refusals = CounterMetricFamily("trainjob_sync_refusals", "Syncs that were refused, by why.", labels=["why"])
        for why, count in sorted(self._coordinator.refusals.items()):
            refusals.add_metric([why], count)
        yield refusals
        events = CounterMetricFamily(
            "trainjob_events",
            "Events of jobs: written, withheld (over the job's allowance), failed.",
            labels=["outcome"],
        )
        for outcome in ("written", "withheld", "failed"):
            events.add_metric([outcome], getattr(self._recorder, outcome))
        yield events


def _family(family: Metric, labels: Iterable[str]) -> Family:
    # The exposition format adds it to a counter's name.
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Family(name, family.type, tuple(labels), family.documentation)


def resource_of(path: str) -> str:
    """The kind of object that an API path is about, with its subresource; `other` for what we do not name."""
    steps = path.partition("?")[0].strip("/").split("/")
    for index, step in enumerate(steps):
        if step in _KINDS and (index == 0 or steps[index - 1] != "namespaces"):
            subresource = steps[index + 2] if len(steps) > index + 2 else ""
            return f"{step}/status" if subresource == "status" else step
    return "other"
