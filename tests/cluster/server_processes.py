"""The processes of a test control plane: how each is started, with which flags, and that it ends with its owner.

Used by `apiserver.py` alone.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from cluster.ports import free_port

ISSUER = "https://kubernetes.default.svc.cluster.local"
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "resourcequota-controller",
    "clusterrole-aggregation-controller",
)
"""None that looks at nodes: they would take pods for lost."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class NotReady(RuntimeError):
    """A process ended or did not answer in time; the message has its last words."""


def _end_with_parent() -> None:
    """Runs in the child: SIGKILL when the process that started it is gone."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Process:
    """One program and its log."""

    name: str
    words: list[str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "start it from the main thread: the kernel ends it together with the thread that started it"
            )
        with open(self.log, "ab") as log:
            self.running = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def stop(self) -> None:
        """At once: nothing in the folder is to be kept."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self.running = None

    def check(self) -> None:
        if self.running is not None and self.running.poll() is not None:
            raise NotReady(f"{self.name} ended with {self.running.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def etcd_flags(folder: Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{free_port()}"
    return [
        f"--data-dir={folder}/etcd",
        "--name=test",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=test={peer}",
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def server_flags(folder: Path, port: int, etcd: str) -> list[str]:
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={folder}/server.crt",
        f"--tls-private-key-file={folder}/server.key",
        f"--client-ca-file={folder}/ca.crt",
        f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={folder}/accounts.pub",
        f"--service-account-signing-key-file={folder}/accounts.key",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        "--enable-priority-and-fairness=false",
        "--profiling=false",
        "--endpoint-reconciler-type=none",
    ]


def controller_flags(folder: Path) -> list[str]:
    return [
        f"--kubeconfig={folder}/admin.kubeconfig",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--service-account-private-key-file={folder}/accounts.key",
        f"--root-ca-file={folder}/ca.crt",
        "--use-service-account-credentials=false",
        "--leader-elect=false",
        "--secure-port=0",
    ]
