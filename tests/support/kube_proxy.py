"""The cluster's API over `kubectl proxy`: many quick requests without a kubectl process for each."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.binaries import binary
from support.e2e import KubectlError
from support.patience import HANG_S
from trainjob_api import contract

TIMEOUT_S = 120.0


class Refused(Exception):
    """The API server said no; the message is what it said."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Proxy:
    """Requests with the rights of KUBECONFIG's user."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer's object. Raises Refused."""
        document: dict[str, Any] = json.loads(self.text(method, path, body))
        return document

    def text(self, method: str, path: str, body: Any = None) -> str:
        """The answer as it came. Raises Refused; KubectlError where the API server does not answer, as kubectl would."""
        headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.base + path, data, headers, method=method), timeout=TIMEOUT_S
            ) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise Refused(error.code, _message(error.read().decode())) from None
        except (OSError, http.client.HTTPException) as error:
            raise KubectlError(f"{method} {path}: {error!r}") from None


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text


def jobs(namespace: str, name: str = "") -> str:
    """The path of a namespace's TrainJobs, or of one."""
    return f"/apis/{contract.API_VERSION}/namespaces/{namespace}/{contract.PLURAL}" + (f"/{name}" if name else "")


@contextmanager
def proxy() -> Iterator[Proxy]:
    """A proxy of our own, ended afterwards."""
    process = subprocess.Popen(
        [shutil.which("kubectl") or str(binary("kubectl")), "proxy", "--port=0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()  # Starting to serve on 127.0.0.1:33333
        assert ":" in said, f"kubectl proxy: {said}"
        yield Proxy(int(said.rsplit(":", 1)[1]))
    finally:
        process.terminate()
        process.wait(HANG_S)
