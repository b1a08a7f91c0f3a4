"""An S3 server on the cluster under test, and jobs whose checkpoints go there.

One server for a session, in a namespace of its own, its buckets on the folder that all nodes share: it can be taken
away and brought back. Each test has a bucket. `reachable()` shows it to this machine too, as a laptop that reaches the
same store.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.binaries import binary
from cluster.images import S3_SERVER, TAG
from support import e2e, gated, s3
from trainjob_api import contract

NAME = "s3"
PORT = 7070
DATA = "/data"
SECRET = "s3-credentials"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class S3Server:
    """The server as tests see it."""

    namespace: str

    @property
    def url(self) -> str:
        """For pods."""
        return f"http://{NAME}.{self.namespace}.svc:{PORT}"

    def bucket(self) -> str:
        """A new one."""
        name = f"bucket-{next(_numbers)}"
        self.run("mkdir", f"{DATA}/{name}")
        return name

    def run(self, *command: str) -> str:
        """A command where the buckets lie."""
        return e2e.kubectl("exec", f"deploy/{NAME}", "-n", self.namespace, "--", *command)

    def stored(self, bucket: str, pattern: str) -> list[str]:
        """Keys that end with the pattern, as `find -path` takes it."""
        found = self.run("find", f"{DATA}/{bucket}", "-type", "f", "-path", f"*{pattern}").split()
        return sorted(path.removeprefix(f"{DATA}/{bucket}/") for path in found)

    def go(self) -> None:
        """The server vanishes; what it holds stays."""
        e2e.kubectl("scale", "deploy", NAME, "-n", self.namespace, "--replicas=0")
        e2e.eventually("the S3 server is gone", lambda: not e2e.listed("pods", self.namespace, f"app={NAME}"))

    def come_back(self) -> None:
        """It answers again."""
        e2e.kubectl("scale", "deploy", NAME, "-n", self.namespace, "--replicas=1")
        e2e.eventually(
            "the S3 server is ready",
            # The Deployment's own count may still be that of before it went.
            lambda: (
                [bool(e2e.condition(pod, "Ready")) for pod in e2e.listed("pods", self.namespace, f"app={NAME}")]
                == [True]
            ),
        )

    def credentials(self, namespace: str, name: str = SECRET, **keys: str) -> None:
        """The Secret that jobs there name."""
        values = {"AWS_ACCESS_KEY_ID": s3.ACCESS, "AWS_SECRET_ACCESS_KEY": s3.SECRET, **keys}
        e2e.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": values,
            }
        )

    def spec(self, storage: str, secret: str = SECRET) -> dict[str, Any]:
        """spec.checkpoint of a job that stores there."""
        return {"storage": storage, "s3": {"endpointURL": self.url, "region": "us-east-1", "credentialsSecret": secret}}

    @contextlib.contextmanager
    def reachable(self) -> Iterator[dict[str, str]]:
        """The environment of a process on this machine that reaches the same store."""
        command = [
            shutil.which("kubectl") or str(binary("kubectl")),
            "port-forward",
            "-n",
            self.namespace,
            f"deploy/{NAME}",
            f":{PORT}",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None, "kubectl port-forward says no port"
            yield s3.environment(f"http://127.0.0.1:{found.group(1)}")
        finally:
            process.kill()
            process.wait()


def start(
    name: str, namespace: str, server: S3Server, storage: str, *arguments: str, own_boto3: bool = True, **more: Any
) -> None:
    """Apply a job of the gated loop that stores on S3. Its gates and notes stay on the nodes' shared folder.

    `own_boto3` False: the image's packages are hidden, and with them its boto3.
    """
    server.credentials(namespace)
    gated.code(namespace)
    spec = {"checkpoint": server.spec(storage), **more.pop("spec", {})}
    document = gated.looping(name, namespace, *arguments, spec=spec, **more)
    # A passing trouble is told of after seconds instead of a minute.
    trainer = document["spec"]["template"]["spec"]["containers"][0]
    trainer["env"] = [*trainer["env"], {"name": contract.ENV_S3_RETRY_S, "value": "3"}]
    if not own_boto3:
        document["spec"]["template"]["spec"]["volumes"].append({"name": "nothing", "emptyDir": {}})
        trainer["volumeMounts"].append({"name": "nothing", "mountPath": "/opt/venv-site"})
    e2e.apply(document)


def _manifests(namespace: str) -> list[Mapping[str, Any]]:
    labels = {"app": NAME}
    container = {
        "name": NAME,
        "image": f"{S3_SERVER}:{TAG}",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--quiet", "--port", f":{PORT}", "posix", DATA],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": s3.ACCESS}, {"name": "ROOT_SECRET_KEY", "value": s3.SECRET}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }
    volume = {"name": "data", "hostPath": {"path": f"{e2e.SHARED}/{namespace}", "type": "DirectoryOrCreate"}}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": [volume]},
    }
    deployment = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": pod}
    where = {"name": NAME, "namespace": namespace}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": where, "spec": deployment},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": where,
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
    ]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Started by the first test that wants it."""
    server = S3Server(f"s3-server-{uuid.uuid4().hex[:6]}")
    e2e.kubectl("create", "namespace", server.namespace)
    try:
        e2e.apply(*_manifests(server.namespace))
        server.come_back()
        yield server
    finally:
        e2e.kubectl("delete", "namespace", server.namespace, "--wait=false")
