"""The operator with many jobs and with a large one, one line per figure: `name value unit`. `make bench-scale` runs it.

    PYTHONPATH=tests python -m benchmarks.scale [--jobs N] [--workers N] [--large N] [--seconds S] [--minutes M]
                                                [--only NAME ...]

Real are the API server (etcd, kube-apiserver, as processes), the operator (a process, as in its pod), TLS and tokens;
nodes and agents are one process, `benchmarks/fleet.py`, and there are no ranks. `alone`: a turn's decision and a look
through all polls, without any of these; `reports`: the coordinator in a process of its own, what a report costs it and
how much memory strangers take; `jobs`: N jobs of four workers are created at once, until all run, then rest,
then report each second, then ranks fail; `large`: one job. The operator's processor time is its process's own. API
server, fleet and operator share the machine: with fewer jobs than the goals name, shares and calls can be taken times
as many, times cannot. A measurement that takes longer than `--minutes` is given up, with all that it had measured by
then. The last lines are the rows of the table in docs/performance.md, each figure with its goal.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alone import recheck, turns
from benchmarks.figures import RESULTS, Figure, Results
from benchmarks.fleet import NODE, cpu_s
from benchmarks.reports import reports
from cluster.apiserver import ApiServer
from cluster.ports import free_port
from support.operators import Installation, Replica
from support.trainjobs import document
from trainjob_api import contract

NAMESPACE = "scale"
SETTLE_S = 15.0
REPORT_S = 1.0
"""Between two reports of a job."""
BREAKS = 100
"""Ranks that fail, one in 0.2 s, while all others report; each of another job."""
RECOVERIES = 20
"""Ranks that fail before, while nobody reports: what a recovery costs in calls."""
JOBS = f"/apis/{contract.API_VERSION}/namespaces/{NAMESPACE}/{contract.PLURAL}"


LAST_LINES, LINE_LIMIT = 15, 600
"""Of each log that is shown when a measurement does not come through."""


class Ended(RuntimeError):
    """Something that the measurement needs has ended, or it does not come to its end; the message shows the logs."""


class Stand:
    """API server, operator and fleet."""

    def __init__(
        self, server: ApiServer, operator: Replica, fleet: subprocess.Popen[str], fleet_log: Path, ends_at: float
    ) -> None:
        self.server = server
        self._ends_at = ends_at
        self.operator = operator
        self._fleet = fleet
        self._fleet_log = fleet_log

    def create(self, count: int, workers: int) -> None:
        for number in range(count):
            changes = {"metadata.name": f"job-{number}", "spec.workers": workers}
            self.server.request("POST", JOBS, document(changes))

    def ask(self, words: str) -> dict[str, Any]:
        """Something of the fleet. Raises Ended."""
        assert self._fleet.stdin is not None and self._fleet.stdout is not None
        try:
            self._fleet.stdin.write(f"{words}\n")
            self._fleet.stdin.flush()
        except BrokenPipeError:
            raise Ended(self.how_all_are()) from None
        line = self._fleet.stdout.readline()
        if not line:
            raise Ended(self.how_all_are())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def until_runs(self, count: int) -> dict[str, Any]:
        """So many agents were told to run. Raises Ended."""
        while (answer := self.ask("how"))["runs"] < count:
            if time.monotonic() >= self._ends_at or self.operator.process.poll() is not None:
                raise Ended(f"{answer['runs']} of {count} agents run: {answer}\n{self.how_all_are()}")
            time.sleep(0.2)
        return answer

    def how_all_are(self) -> str:
        """Every process: whether it lives, its exit code, and the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._fleet.wait(1.0)
        logs = {"operator": self.operator.log, "fleet": self._fleet_log}
        processes = {"operator": self.operator.process, "fleet": self._fleet, **self.server.processes()}
        said = []
        for name, process in processes.items():
            code, log = process.poll(), logs.get(name, self.server.folder / f"{name}.log")
            lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
            state = "lives" if code is None else f"ended with {code}"
            said.append("\n".join([f"--- {name} {state}", *(line[:LINE_LIMIT] for line in lines)]))
        return "\n".join(said)

    def steady(self, seconds: float, jobs: int) -> tuple[float, float]:
        """So many seconds pass: share of a core in percent, and calls a job and minute."""
        cpu, calls, begun = self.cpu_s(), self.calls(), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        return 100.0 * (self.cpu_s() - cpu) / took, (self.calls() - calls) / jobs * 60.0 / took

    def cpu_s(self) -> float:
        """Processor time of the operator."""
        return cpu_s(self.operator.process.pid)

    def most_mib(self) -> float:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.operator.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def calls(self) -> float:
        """Made by the operator for jobs: not its watch, nor the Lease of its leader."""
        counted = self.operator.calls().items()
        return sum(n for (client, _, resource), n in counted if client != "watch" and resource != "leases")


@contextmanager
def stand(minutes: float) -> Iterator[Stand]:
    """A fresh one; what is waited for has so long from now on."""
    ends_at = time.monotonic() + 60.0 * minutes
    with tempfile.TemporaryDirectory() as folder, ApiServer(controllers=False) as server:
        server.install_crd()
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = {"metadata": {"name": "default"}}
        server.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
        server.request("POST", "/api/v1/namespaces", {"metadata": {"name": "operator"}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "status": ready})
        ports = [{"name": "https", "port": contract.COORDINATOR_PORT}]
        service = {"metadata": {"name": contract.COORDINATOR_SERVICE}, "spec": {"ports": ports}}
        server.request("POST", "/api/v1/namespaces/operator/services", service)
        installation = Installation(server, "operator", Path(folder))
        port = free_port()
        flags = ("--namespace", NAMESPACE, "--coordinator-url", f"https://localhost:{port}")
        operator = installation.start("operator-0", *flags, "--coordinator-port", str(port))
        operator.says("leading:")
        secret = server.request("GET", f"/api/v1/namespaces/operator/secrets/{contract.COORDINATOR_SECRET}")
        ca = Path(folder) / "coordinator.crt"
        ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        words = [str(server.kubeconfig), NAMESPACE, str(port), str(ca), str(operator.process.pid)]
        log = Path(folder) / "fleet.log"
        with open(log, "wb") as stream:
            fleet = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.fleet", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )
        try:
            yield Stand(server, operator, fleet, log, ends_at)
        finally:
            fleet.kill()
            fleet.wait()
            installation.close()


def jobs(plan: argparse.Namespace) -> Iterator[Figure]:
    """Many, all at once; then at rest; then some ranks fail; then rank 0 of each reports every second; then ranks fail
    meanwhile.
    """
    with stand(plan.minutes) as now:
        at, count = f"{plan.jobs}_jobs", plan.jobs * plan.workers
        cpu, calls, begun = now.cpu_s(), now.calls(), time.monotonic()
        now.create(plan.jobs, plan.workers)
        now.until_runs(count)
        yield Figure(f"created_to_running_{at}", "s", [time.monotonic() - begun])
        yield Figure(f"created_cpu_{at}", "s a job", [(now.cpu_s() - cpu) / plan.jobs])
        yield Figure(f"created_calls_{at}", "a job", [(now.calls() - calls) / plan.jobs])
        time.sleep(SETTLE_S)
        share, made = now.steady(plan.seconds, plan.jobs)
        yield Figure(f"idle_cpu_{at}", "% of a core", [share])
        yield Figure(f"idle_calls_{at}", "a job and hour", [60.0 * made])
        few, calls = min(RECOVERIES, plan.jobs // 2), now.calls()
        now.ask(f"break {few}")
        time.sleep(SETTLE_S)
        yield Figure(f"recovery_calls_{at}", "a failure", [(now.calls() - calls) / few])
        now.ask(f"report {REPORT_S}")
        time.sleep(SETTLE_S)
        before, begun = now.ask("how"), time.monotonic()
        share, made = now.steady(plan.seconds, plan.jobs)
        after, took = now.ask("how"), time.monotonic() - begun
        yield Figure(f"reports_{at}", "a second", [(after["reports"] - before["reports"]) / took])
        yield Figure(f"told_{at}", "a second", [(after["told"] - before["told"]) / took])
        yield Figure(f"reporting_cpu_{at}", "% of a core", [share])
        yield Figure(f"reporting_calls_{at}", "a job and minute", [made])
        lags = now.ask(f"break {min(BREAKS, plan.jobs - few)}")["lags"]
        yield Figure(f"failure_to_next_attempt_{at}", "s", lags)
        yield Figure(f"failure_to_next_attempt_p99_{at}", "s", lags, quantile=0.99)
        yield Figure(f"jobs_memory_{at}", "MiB", [now.most_mib()])


def large(plan: argparse.Namespace) -> Iterator[Figure]:
    """One job of many workers."""
    with stand(plan.minutes) as now:
        begun, cpu, at = time.monotonic(), now.cpu_s(), f"{plan.large}_workers"
        now.create(1, plan.large)
        try:
            answer = now.until_runs(plan.large)
        finally:
            yield Figure(f"large_memory_{at}", "MiB", [now.most_mib()])
        yield Figure(f"large_to_run_{at}", "s", [answer["to_run_s"]])
        yield Figure(f"large_to_run_cpu_{at}", "s", [answer["to_run_cpu_s"]])
        yield Figure(f"large_created_to_running_{at}", "s", [time.monotonic() - begun])
        yield Figure(f"large_cpu_{at}", "s", [now.cpu_s() - cpu])
        time.sleep(SETTLE_S)
        yield Figure(f"large_idle_cpu_{at}", "% of a core", [now.steady(plan.seconds, 1)[0]])


def alone(plan: argparse.Namespace) -> Iterator[Figure]:
    """Decisions and rechecks of one job."""
    yield from turns(1000)
    yield from recheck(plan.large)


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "alone": alone,
    "reports": lambda plan: reports(),
    "jobs": jobs,
    "large": large,
}


@dataclass(frozen=True)
class Goal:
    """A figure may be at most so large."""

    figure: str
    most: float
    unit: str
    words: str


GOALS = (
    Goal("reporting_cpu_1000_jobs", 60.0, "% of a core", "1,000 jobs of 4 workers that report each second"),
    Goal("failure_to_next_attempt_p99_1000_jobs", 1.0, "s", "meanwhile: from a failure to the next attempt, p99"),
    Goal("created_to_running_1000_jobs", 120.0, "s", "1,000 jobs created at once, until all run"),
    Goal("recheck_5000_workers", 50.0, "ms", "a recheck of 5,000 workers"),
    Goal("large_memory_5000_workers", 300.0, "MiB", "memory with 5,000 workers"),
    Goal("large_to_run_5000_workers", 5.0, "s", "5,000 workers: from the last sync until all are told to run"),
    Goal("turn_1000_workers", 20.0, "ms", "a turn of 1,000 workers"),
    Goal("idle_calls_1000_jobs", 2.0, "a job and hour", "calls of a job at rest"),
    Goal("reporting_calls_1000_jobs", 7.0, "a job and minute", "calls of a job that reports"),
    Goal("recovery_calls_1000_jobs", 6.0, "a failure", "calls of a recovery"),
    Goal("report_cpu", 0.6, "ms", "a report, processor time of the coordinator"),
    Goal("strangers_memory_1024", 32.0, "MiB", "1,024 strangers with bodies of 256 KiB, memory added"),
)


def against_goals(figures: Iterable[Figure]) -> list[str]:
    """A table with a row for each goal; one whose size was not measured says so."""
    found = {figure.name: figure for figure in figures}
    lines = ["| what | figure | goal | measured | |", "| --- | --- | --- | --- | --- |"]
    for goal in GOALS:
        figure = found.get(goal.figure)
        value, met = "not measured", ""
        if figure is not None:
            value = f"{figure.value:.4g} {figure.unit}"
            met = "met" if figure.value <= goal.most else "**not met**"
        lines.append(f"| {goal.words} | `{goal.figure}` | {goal.most:g} {goal.unit} | {value} | {met} |")
    return lines


def measured(name: str, plan: argparse.Namespace) -> tuple[list[Figure], bool]:
    """Each figure is printed as it comes; and whether it came through."""
    figures = []
    try:
        for figure in MEASUREMENTS[name](plan):
            print(figure.line(), flush=True)
            figures.append(figure)
    except Ended as ended:
        print(f"{name} did not come through: {ended}", file=sys.stderr, flush=True)
        return figures, False
    return figures, True


def main(arguments: list[str]) -> int:
    """Run the measurements that are asked for; 1: one did not come through."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__, allow_abbrev=False)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4, help="of each of the jobs")
    parser.add_argument("--large", type=int, default=5000, help="workers of the large job")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a steady state")
    parser.add_argument("--minutes", type=float, default=20.0, help="the longest that a measurement may take to start")
    parser.add_argument("--only", nargs="*", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    plan = parser.parse_args(arguments)
    results, good, every = Results(), True, []
    for name in plan.only:
        figures, through = measured(name, plan)
        good = good and through
        every += figures
        results.keep(name, figures)
    results.write(plan.results)
    print("\n".join(against_goals(every)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
