"""Real operator processes before a real API server: started as in a pod, read by their logs and metrics, ended by
signals.

An `Installation` is what the chart would have made (namespace, Service, roles from rights.RULES); `start` gives
replicas of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from cluster.apiserver import ApiServer
from cluster.ports import free_port
from support.patience import HANG_S
from trainjob_api import contract
from trainjob_operator.k8s.rights import RULES, Rule, Where

T = TypeVar("T")
POD_IP = "192.0.2.10"
"""Goes into the EndpointSlice, where loopback addresses are refused; nobody calls it."""
OPERATOR_FOLDER = Path(__file__).parents[2] / "operator"


def eventually(ask: Callable[[], T | None], what: str, within_s: float = HANG_S) -> T:
    """Ask until the answer is true."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.05)


@dataclass
class Replica:
    """One operator process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int

    def lines(self) -> list[dict[str, Any]]:
        """What it logged; a line that is no JSON is an error of the test."""
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines()]

    def says(self, words: str, within_s: float = HANG_S) -> str:
        """Wait for a line that holds these words."""

        def heard() -> str | None:
            found = next((message for message in self.messages() if words in message), None)
            assert found or self.process.poll() is None, (
                f"{self.name} ended with {self.process.returncode}: {self.log.read_text()}"
            )
            return found

        return eventually(heard, f"{self.name} says {words!r}; it said: {self.log.read_text()[-2000:]}", within_s)

    def page(self, path: str) -> tuple[int, str]:
        """One of /metrics, /healthz, /readyz; status 0 when nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=HANG_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def calls(self) -> dict[tuple[str, str, str], float]:
        """API calls so far, by client, verb and resource."""
        counted: dict[tuple[str, str, str], float] = {}
        for family in text_string_to_metric_families(self.page("/metrics")[1]):
            for sample in family.samples:
                if sample.name == "trainjob_api_calls_total":
                    key = (sample.labels["client"], sample.labels["verb"], sample.labels["resource"])
                    counted[key] = counted.get(key, 0) + sample.value
        return counted

    def metric(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.page("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return None

    def leads(self) -> bool:
        return self.metric("trainjob_leader") == 1.0

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, within_s: float = HANG_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout=within_s)


@dataclass
class Installation:
    """The operator's namespace on a server, and the replicas started in it."""

    server: ApiServer
    namespace: str
    folder: Path
    replicas: list[Replica] = field(default_factory=list)

    def start(self, name: str, *flags: str, kubeconfig: Path | None = None) -> Replica:
        """A replica; it may have ended before this returns."""
        port = free_port()
        log = self.folder / f"{name}-{len(self.replicas)}.log"
        words = [
            "--runtime-image",
            "trainjob-runtime:test",
            "--coordinator-port",
            str(free_port()),
            "--metrics-port",
            str(port),
        ]
        path = str(kubeconfig or self.server.kubeconfig)
        environment = {
            **os.environ,
            "POD_NAME": name,
            "POD_NAMESPACE": self.namespace,
            "POD_IP": POD_IP,
            "PYTHONPATH": str(OPERATOR_FOLDER),
        }
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainjob_operator", *words, "--kubeconfig", path, *flags],
                stdout=stream,
                stderr=stream,
                env=environment,
            )
        replica = Replica(name, process, log, port)
        self.replicas.append(replica)
        return replica

    def lease(self) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{contract.LEASE_NAME}"
        return dict(self.server.request("GET", path)["spec"])

    def close(self) -> None:
        for replica in self.replicas:
            replica.process.kill()
            replica.process.wait()


@contextmanager
def installed(server: ApiServer, namespace: str, folder: Path) -> Iterator[Installation]:
    """The operator's namespace with its Service; what was started ends with the context."""
    server.create_namespace(namespace)
    ports = [{"name": "https", "port": contract.COORDINATOR_PORT}]
    server.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/services",
        {"metadata": {"name": contract.COORDINATOR_SERVICE}, "spec": {"ports": ports}},
    )
    installation = Installation(server, namespace, folder)
    try:
        yield installation
    finally:
        installation.close()


# --- Roles ------------------------------------------------------------------------------------------------------------


def grant(installation: Installation, jobs: str | None, *, without: tuple[str, str] | None = None) -> Path:
    """A kubeconfig with exactly the rights of RULES, for jobs in one namespace (None: everywhere), less (verb,
    resource).
    """
    server, own, account = installation.server, installation.namespace, "operator"
    server.request("POST", f"/api/v1/namespaces/{own}/serviceaccounts", {"metadata": {"name": account}})
    rules = [rule for rule in RULES if not rule.optional]
    places: dict[Where, str | None] = {Where.OWN: own, Where.JOBS: jobs}
    if jobs is None:
        places[Where.CLUSTER] = None
    for where, namespace in places.items():
        chosen = [_policy(rule, without) for rule in rules if rule.where is where]
        _bind(
            server, f"{own}-{where.value}", namespace, [policy for policy in chosen if policy["verbs"]], (own, account)
        )
    return server.service_account_kubeconfig(own, account)


def _policy(rule: Rule, without: tuple[str, str] | None) -> dict[str, Any]:
    names = {
        "lease": contract.LEASE_NAME,
        "claim": contract.CLAIM_LEASE,
        "secret": contract.COORDINATOR_SECRET,
        "service": contract.COORDINATOR_SERVICE,
    }
    verbs = [verb for verb in rule.verbs if (verb, rule.resource) != without]
    named = {"resourceNames": [names[rule.named]]} if rule.named else {}
    return {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": verbs, **named}


def _bind(
    server: ApiServer, name: str, namespace: str | None, rules: list[dict[str, Any]], account: tuple[str, str]
) -> None:
    base = "/apis/rbac.authorization.k8s.io/v1" + (f"/namespaces/{namespace}" if namespace else "")
    kind = "Role" if namespace else "ClusterRole"
    server.request("POST", f"{base}/{kind.lower()}s", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    server.request(
        "POST",
        f"{base}/{kind.lower()}bindings",
        {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]},
    )
