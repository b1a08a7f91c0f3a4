"""A real S3 server for tests: versitygw on a folder, one for each test process, each test in a bucket of its own.

`environment(endpoint)` is what a process needs to reach it. Tests skip with the reason where the server can neither be
found nor built.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.binaries import BuildError, binary, have_go, is_built
from cluster.ports import free_port
from support.patience import HANG_S
from trainjob_api import contract

BUCKET = "checkpoints"
ACCESS, SECRET = "test-access", "test-secret"
_names = itertools.count(1)


def environment(endpoint: str, *, retry_s: float = 20.0, timeout_s: float = 10.0) -> dict[str, str]:
    """For whoever is to reach the server; nothing of the machine's own AWS settings counts."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        contract.ENV_S3_RETRY_S: str(retry_s),
        contract.ENV_S3_TIMEOUT_S: str(timeout_s),
    }


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what this machine's environment says of AWS."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TRAINJOB_S3_"))]:
        monkeypatch.delenv(name)


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, **settings: float) -> None:
    """This process reaches the server there from now on."""
    clear(monkeypatch)
    for name, value in environment(endpoint, **settings).items():
        monkeypatch.setenv(name, value)


def fresh_uri() -> str:
    """A job's folder that nobody has used, in a bucket of its own (the server lists a bucket by walking all of it);
    the path has to be escaped.
    """
    endpoint()
    bucket = f"{BUCKET}-{next(_names)}"
    (_roots[-1] / bucket).mkdir()
    return f"s3://{bucket}/a folder ü/job"


def behind(place: str) -> Path:
    """The folder in which the server keeps what lies at an s3:// URI, or at a path /bucket/key: it may be looked at
    and changed behind the server.
    """
    return _roots[-1] / place.removeprefix("s3://").strip("/")


def forget(path: str) -> None:
    """The object /bucket/key is gone."""
    if behind(path).is_file():
        behind(path).unlink()


def unfinished(uri: str) -> int:
    """How many multipart uploads the bucket holds."""
    return len(list((behind(uri.removeprefix("s3://").partition("/")[0]) / ".sgwtmp" / "multipart").glob("*/*")))


def client(endpoint: str) -> Any:
    """boto3's own, for what a test does behind the store's back."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    return boto3.session.Session().client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1"
    )


@functools.cache
def endpoint() -> str:
    """The server's URL; started at the first call, ended with this process."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    if not is_built("versitygw") and not have_go():
        pytest.skip("versitygw, the S3 server of the tests, is not built, and there is no Go to build it")
    try:
        program = binary("versitygw")
    except BuildError as error:
        pytest.skip(f"versitygw, the S3 server of the tests, cannot be built: {error}")
    return f"http://{_serve(program, _new_root())}"


def serve_tls(certificate: Path, key: Path) -> str:
    """Another server on the same folder, which speaks TLS alone; its URL."""
    endpoint()
    options = f"--cert '{certificate}' --key '{key}'"
    return f"https://{_serve(binary('versitygw'), _roots[-1], options)}"


_guards: list[subprocess.Popen[bytes]] = []
"""Each reads its stdin until this process is gone, however that goes, and then ends its server."""


_roots: list[Path] = []
"""The server's folder, once it runs."""


def _new_root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="s3-server-", dir=_quick()))
    (root / BUCKET).mkdir()
    _roots.append(root)
    return root


def _serve(program: Path, root: Path, options: str = "") -> str:
    """Host and port."""
    port = free_port()
    serve = f"'{program}' --quiet --keep-alive {options} --port 127.0.0.1:{port} posix '{root}'"
    words = f"{serve} >/dev/null 2>&1 & cat >/dev/null; kill $!; wait; rm -rf '{root}'"
    keys = {"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
    _guards.append(subprocess.Popen(["sh", "-c", words], stdin=subprocess.PIPE, env=keys, start_new_session=True))
    _wait_for(port, _guards[-1])
    return f"127.0.0.1:{port}"


def _quick() -> str | None:
    """A folder in memory if it can hold what the server notes of each object; else where temporary files go."""
    try:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            os.setxattr(file.name, "user.trainjob", b"1")
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 1 << 30 else None
    except OSError:
        return None


def _wait_for(port: int, guard: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            assert guard.poll() is None and time.monotonic() < deadline, "versitygw does not listen"
            time.sleep(0.02)
