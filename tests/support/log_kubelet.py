"""A node that has nothing but logs: it serves the kubelet's /containerLogs to a real API server, for tests of `tj
logs`.

Pods are created bound to it, and tests say what their containers write, when these end or are started again, and when
connections break. Every line has a time of its own, a millisecond after the one before.
"""

from __future__ import annotations

import itertools
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

from cluster.apiserver import ApiServer
from trainjob_api import contract

BEGIN = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
Manifest = dict[str, Any]


class _Log:
    """One container's lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.before: list[tuple[str, str]] = []
        self.ended = False


class LogKubelet:
    """Use as a context manager; `namespace` is where its pods are."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._server, self._namespace = server, namespace
        self.node = f"node-of-{namespace}"
        self._logs: dict[str, _Log] = {}
        self._clock = itertools.count(1)
        self._changed = threading.Condition()
        self._cuts = 0
        self.readers: list[str] = []
        """Queries of the logs that were opened, in their order."""
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                kubelet._serve(self)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server.folder / "server.crt", server.folder / "server.key")
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, name="log kubelet", daemon=True)

    def __enter__(self) -> LogKubelet:
        self._thread.start()
        port = self._http.server_address[1]
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self._server.request("POST", "/api/v1/nodes", {"metadata": {"name": self.node}, "status": status})
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._server.request("DELETE", f"/api/v1/nodes/{self.node}")

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def pod(self, job: Manifest, slot: int, *, phase: str = "Running") -> Manifest:
        """A job's pod on this node, in that phase."""
        name = job["metadata"]["name"]
        made = self._server.request(
            "POST",
            f"/api/v1/namespaces/{self._namespace}/pods",
            {
                "metadata": {
                    "name": f"{name}-{slot}",
                    "labels": {contract.LABEL_JOB: name, contract.LABEL_SLOT: str(slot)},
                    "ownerReferences": [
                        {
                            "apiVersion": contract.API_VERSION,
                            "kind": contract.KIND,
                            "name": name,
                            "uid": job["metadata"]["uid"],
                            "controller": True,
                        }
                    ],
                },
                "spec": {"nodeName": self.node, "containers": [{"name": "trainer", "image": "none"}]},
            },
        )
        with self._changed:
            self._logs[made["metadata"]["name"]] = _Log()
        self.status(made["metadata"]["name"], phase)
        return made

    def status(self, pod: str, phase: str, restarts: int = 0) -> None:
        """Set a pod's phase and the trainer's restart count."""
        state = (
            {"running": {}}
            if phase == "Running"
            else {"waiting": {"reason": "ContainerCreating"}}
            if phase == "Pending"
            else {"terminated": {"exitCode": 0}}
        )
        containers = [
            {
                "name": "trainer",
                "image": "none",
                "imageID": "",
                "ready": phase == "Running",
                "restartCount": restarts,
                "state": state,
            }
        ]
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod}/status"
        self._server.request("PATCH", path, {"status": {"phase": phase, "containerStatuses": containers}})

    def remove(self, pod: str) -> None:
        """Delete it at once."""
        self.end(pod)
        self._server.request("DELETE", f"/api/v1/namespaces/{self._namespace}/pods/{pod}", {"gracePeriodSeconds": 0})

    # --- Logs ---------------------------------------------------------------------------------------------------------

    def write(self, pod: str, *texts: str) -> None:
        """Lines of the container."""
        with self._changed:
            self._logs[pod].lines += [(self._stamp(), text) for text in texts]
            self._changed.notify_all()

    def end(self, pod: str) -> None:
        """The container writes no more: who reads to the end has all."""
        with self._changed:
            self._logs[pod].ended = True
            self._changed.notify_all()

    def restart(self, pod: str, count: int) -> None:
        """The container ends and is started again in its pod."""
        self.end(pod)
        with self._changed:
            before, self._logs[pod] = self._logs[pod], _Log()
            self._logs[pod].before = before.lines
        self.status(pod, "Running", count)

    def finish(self, pod: str, phase: str = "Succeeded") -> None:
        """The container ends, and its pod."""
        self.end(pod)
        self.status(pod, phase)

    def cut(self) -> None:
        """Break every open connection in the middle."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def _stamp(self) -> str:
        at = BEGIN + timedelta(milliseconds=next(self._clock))
        return at.isoformat(timespec="microseconds").replace("+00:00", "").rstrip("0") + "Z"

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        url = urlparse(request.path)
        pod, query = url.path.split("/")[3], {name: values[0] for name, values in parse_qs(url.query).items()}
        with self._changed:
            self.readers.append(f"{pod}?{url.query}")
            log, cuts = self._logs[pod], self._cuts
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for line in self._lines(log, query, cuts):
            data = f"{line}\n".encode()
            request.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            request.wfile.flush()
        if cuts == self._cuts:
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

    def _lines(self, log: _Log, query: dict[str, str], cuts: int) -> Iterator[str]:
        lines = log.before if query.get("previous") == "true" else log.lines
        # As the API server passes it on: in its own time zone.
        asked = datetime.fromisoformat(query["sinceTime"]) if "sinceTime" in query else BEGIN
        since = f"{asked.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
        at = max(0, len(lines) - int(query["tailLines"])) if "tailLines" in query else 0
        while True:
            with self._changed:
                new, at = lines[at:], len(lines)
                over = (log.ended and not new) or query.get("follow") != "true"
            for stamp, text in new:
                if stamp[:19] >= since:
                    yield f"{stamp} {text}" if query.get("timestamps") == "true" else text
            with self._changed:
                if over or cuts != self._cuts:
                    return
                while len(lines) == at and not log.ended and cuts == self._cuts:
                    self._changed.wait()
