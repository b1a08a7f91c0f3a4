"""A Kubernetes API server without nodes: etcd, kube-apiserver and a few controllers as processes, ready in about three
seconds.

Used by the tests of everything that speaks to an API server, through `support.apiserver`. What pods do is up to the
test: there are no kubelets. All is in one temporary folder and on free loopback ports; the processes end with the one
that started them, whichever way that one ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from cluster.binaries import binary
from cluster.credentials import write_credentials
from cluster.ports import free_port
from cluster.server_processes import NotReady, Process, controller_flags, etcd_flags, server_flags
from support.patience import HANG_S

CRD_FILE = Path(__file__).parents[2] / "crds" / "trainjob.dev_trainjobs.yaml"

_PREFIX = "trainjob-apiserver-"


class ApiServer:
    """A running control plane; `close` ends it and removes its folder. Also a context manager."""

    def __init__(self, *, controllers: bool = True) -> None:
        self.remove_left_behind()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.admin_token = secrets.token_hex(16)
        self.ca = self.folder / "ca.crt"
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self._processes: dict[str, Process] = {}
        try:
            write_credentials(self.folder)
            tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.ca)))
            self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)
            self._start(controllers)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, remove the folder."""
        for process in reversed(self._processes.values()):
            process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def remove_left_behind() -> None:
        """Folders of tests that were killed; their processes went with them."""
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            pid = folder.name.removeprefix(_PREFIX).split("-")[0]
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)

    # --- What tests ask -----------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call as admin; the answer. A merge patch for PATCH. Raises urllib.error.HTTPError with the API's message.

        429 is asked again, as every client does: the server says it while a CustomResourceDefinition is being changed.
        """
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                return self._request(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code != 429 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {
            "Authorization": f"Bearer {self.admin_token}",
            "Content-Type": kind,
            "Accept": "application/json, */*",
        }
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._opener.open(
                urllib.request.Request(self.url + path, data, headers, method=method), timeout=HANG_S
            ) as answer:
                content = answer.read()
                document: dict[str, Any] = (
                    json.loads(content) if content.startswith(b"{") else {"text": content.decode()}
                )
                return document
        except urllib.error.HTTPError as error:
            error.msg = error.read().decode(errors="replace")
            raise

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin. Raises AssertionError with its words when it fails, unless check is False."""
        command = shutil.which("kubectl") or str(binary("kubectl"))
        full = [command, f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder}/kubectl-cache", *words]
        done = subprocess.run(
            full,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done

    def install_crd(self, document: dict[str, Any] | None = None) -> None:
        """Create a CustomResourceDefinition (ours, if none is given) and wait until its objects are served and their
        schema is published.
        """
        crd = document or yaml.safe_load(CRD_FILE.read_text())
        self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        names, group, version = crd["spec"]["names"], crd["spec"]["group"], crd["spec"]["versions"][0]["name"]
        self._until(f"/apis/{group}/{version}/{names['plural']}", lambda answer: answer["kind"] == names["listKind"])
        self._until(
            f"/openapi/v3/apis/{group}/{version}",
            lambda answer: any(schema.endswith(f".{names['kind']}") for schema in answer["components"]["schemas"]),
        )

    def create_namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """A namespace in which pods can be created: its service account is there."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        self._until(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda answer: "metadata" in answer)

    def kubeconfig_for(self, token: str, name: str = "user") -> Path:
        """A kubeconfig that carries this token."""
        path = self.folder / f"{name}.kubeconfig"
        self._write_kubeconfig(path, token)
        return path

    def service_account_token(
        self, namespace: str, name: str, *, audience: str = "", seconds: int = 3600, pod: dict[str, Any] | None = None
    ) -> str:
        """A token of a service account, by the TokenRequest API; bound to a pod (its manifest as created) as a
        kubelet's is.
        """
        spec: dict[str, Any] = {"audiences": [audience] if audience else [], "expirationSeconds": seconds}
        if pod is not None:
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", body)
        return str(answer["status"]["token"])

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig with the rights of a service account: what RBAC allows it by now, and nothing more."""
        self.settle_rights()
        return self.kubeconfig_for(self.service_account_token(namespace, name), f"{namespace}-{name}")

    def allowed(self, user: str, verb: str, what: str, namespace: str, group: str) -> bool:
        """Whether this user may do it; `what` is a resource, or `resource/subresource`."""
        resource, _, subresource = what.partition("/")
        asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": asked},
        }
        answer = self.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    def settle_rights(self) -> None:
        """Return once the server goes by every role and binding that was written: it decides from caches, one of each
        kind, which come a moment after.
        """
        group, mark = "rbac.authorization.k8s.io", f"mark-{secrets.token_hex(8)}"
        rules = [{"apiGroups": ["example.org"], "resources": ["marks"], "verbs": ["get"]}]
        for kind, base in (("ClusterRole", f"/apis/{group}/v1"), ("Role", f"/apis/{group}/v1/namespaces/default")):
            user, plural = f"{mark}-{kind}", kind.lower()
            self.request("POST", f"{base}/{plural}s", {"metadata": {"name": mark}, "rules": rules})
            binding = {
                "metadata": {"name": mark},
                "roleRef": {"apiGroup": group, "kind": kind, "name": mark},
                "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
            }
            self.request("POST", f"{base}/{plural}bindings", binding)
            deadline = time.monotonic() + HANG_S
            while not self.allowed(user, "get", "marks", "default", "example.org"):
                assert time.monotonic() < deadline, f"the API server does not go by a {kind}"

    def processes(self) -> dict[str, subprocess.Popen[bytes]]:
        """What was started and not stopped, by name; the log of each is NAME.log in `folder`."""
        return {name: found.running for name, found in self._processes.items() if found.running is not None}

    def stop_server(self) -> None:
        """The API server goes (etcd and its objects stay)."""
        self._processes["kube-apiserver"].stop()

    def start_server(self) -> None:
        """It comes back under the same address."""
        self._processes["kube-apiserver"].start()
        self._wait_ready()

    def freeze(self) -> None:
        """The API server accepts connections and answers nothing."""
        pid = self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + HANG_S
        while any(_state(stat) != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
            assert time.monotonic() < deadline, "the API server does not stop"
            time.sleep(0.005)

    def thaw(self) -> None:
        """It goes on."""
        self._signal(signal.SIGCONT)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _signal(self, number: signal.Signals) -> int:
        running = self._processes["kube-apiserver"].running
        assert running is not None
        running.send_signal(number)
        return running.pid

    def _run(self, name: str, *flags: str) -> None:
        process = Process(name, [str(binary(name)), *flags], self.folder / f"{name}.log")
        self._processes[name] = process
        process.start()

    def _start(self, controllers: bool) -> None:
        (self.folder / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        self._write_kubeconfig(self.kubeconfig, self.admin_token)
        etcd = f"http://127.0.0.1:{free_port()}"
        self._run("etcd", *etcd_flags(self.folder, etcd))
        self._run("kube-apiserver", *server_flags(self.folder, self.port, etcd))
        self._wait_ready()
        if controllers:
            # After the CRD: the garbage collector finds kinds that come later only at its next look, 30 s on.
            self.install_crd()
            self._run("kube-controller-manager", *controller_flags(self.folder))
            self._wait_for_controllers()

    def _write_kubeconfig(self, path: Path, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority-data": base64.b64encode(self.ca.read_bytes()).decode()}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
            "current-context": "test",
        }
        path.write_text(yaml.safe_dump(document))
        path.chmod(0o600)

    def _wait_ready(self) -> None:
        # Only once its start-up is over can namespaces and roles be relied on.
        self._until("/readyz", lambda answer: answer["text"] == "ok")

    def _wait_for_controllers(self) -> None:
        """Pods need their namespace's service account, which a controller makes."""
        self._until("/api/v1/namespaces/default/serviceaccounts/default", lambda answer: "metadata" in answer)

    def _until(self, path: str, good: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while True:
            for process in self._processes.values():
                process.check()
            with contextlib.suppress(OSError):
                if good(self.request("GET", path)):
                    return
            if time.monotonic() > deadline:
                words = "; ".join(
                    f"{process.name}: {process.last_words()[-600:]}" for process in self._processes.values()
                )
                raise NotReady(f"{self.url}{path} not ready after {HANG_S:.0f} s: {words}")
            time.sleep(0.05)


def _state(stat: Path) -> str:
    """A thread's state letter; one that ended meanwhile does nothing more either."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "T"


def main() -> None:
    """`python -m cluster.apiserver` (PYTHONPATH=tests): one to play with, until Ctrl-C."""
    with ApiServer() as server:
        print(f"export KUBECONFIG={server.kubeconfig}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
