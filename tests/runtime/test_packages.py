"""boto3 of the runtime image: what is in it, who sees it, and that it does all that storage on S3 asks of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from support import s3
from support.agent_rig import Rig
from support.patience import HANG_S
from support.runtime_image import VERSIONS, packages, pythons, with_packages
from trainjob_api import contract

pytestmark = pytest.mark.slow

LIMIT = 20 << 20
"""Bytes: the whole image is to stay below 50 MB."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pod's runtime folder."""
    return with_packages(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def lowest() -> str:
    """The oldest Python that is here, without a boto3 of its own."""
    found = [
        python
        for version in VERSIONS
        for python in pythons(version)
        if run(python, "import boto3", check=False).returncode != 0
    ]
    if not found:
        pytest.skip("every Python here has a boto3 of its own")
    return found[0]


def run(python: str, code: str, *, path: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": path, "PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


def test_only_what_storage_needs_is_in_it() -> None:
    folder = packages()
    data = {path.name for path in (folder / "botocore" / "data").iterdir()}
    assert {"s3", "sts", "endpoints.json", "partitions.json", "_retry.json", "sdk-default-configuration.json"} == data
    assert (folder / "botocore" / "cacert.pem").exists(), "what stores are trusted by"
    assert not [path for path in folder.rglob("*") if path.suffix in (".so", ".pyd")], "one folder for every Python"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < LIMIT


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_each_python_can_use_it(runtime: Path, version: str) -> None:
    found = pythons(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    code = (
        "from trainjob.checkpoint import packages as p; p.use(); import boto3; s = boto3.session.Session(); s.client('s3', region_name='eu-west-3'); \
print(boto3.__file__, s.client('sts', region_name='eu-west-3').meta.endpoint_url)"
    )
    said = run(found[0], code, path=str(runtime / "lib")).stdout.split()
    assert said == [
        str(runtime / contract.RUNTIME_PACKAGES / "boto3" / "__init__.py"),
        "https://sts.eu-west-3.amazonaws.com",
    ]


@pytest.mark.parametrize(
    ("version", "wins"), [("1.41.2", True), ("1.40.0.dev1", True), ("1.39.17", False), (None, False)]
)
def test_an_images_own_boto3_wins_unless_it_is_too_old(
    runtime: Path, tmp_path: Path, lowest: str, version: str | None, wins: bool
) -> None:
    (tmp_path / "boto3").mkdir()
    (tmp_path / "boto3" / "__init__.py").write_text("")
    if version:
        (tmp_path / f"boto3-{version}.dist-info").mkdir()
    code = "from trainjob.checkpoint import packages as p; p.use(); import boto3; print(boto3.__file__)"
    said = run(lowest, code, path=f"{runtime / 'lib'}:{tmp_path}").stdout.strip()
    assert said == str((tmp_path if wins else runtime / contract.RUNTIME_PACKAGES) / "boto3" / "__init__.py")


TRAIN = """
import importlib.util, os, sys, tempfile, trainjob
print("boto3 here:", importlib.util.find_spec("boto3"), "path:", [p for p in sys.path if p.endswith("content/packages")], flush=True)
checkpoint = trainjob.get_checkpoint()
start = 0
if checkpoint is not None:
    with checkpoint.as_directory() as folder:
        assert os.path.getsize(os.path.join(folder, "large")) == 20 << 20
        start = int(open(os.path.join(folder, "step")).read())
print("from", start, flush=True)
for step in range(start, start + 2):
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "step"), "w").write(str(step + 1))
        with open(os.path.join(folder, "large"), "wb") as file:
            file.write(os.urandom(20 << 20))
        trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_directory(folder), checkpoint_upload_mode="SYNC")
"""


def train(folder: Path, runtime: Path, python: str, storage: str, env: Mapping[str, str]) -> str:
    """One attempt in a pod of its own; what it printed."""
    command, spec = [python, "train.py"], {"keep": 1}
    with Rig(
        folder,
        script=TRAIN,
        agents=1,
        python=str(runtime / "start"),
        entry=(),
        command=command,
        storage=storage,
        spec=spec,
        env=env,
    ) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "the rank has ended")
        assert rig.rank(0)["kind"] == contract.END_OK, rig.text(0)
        rig.wait(lambda: rig.report(0).get("completed"), "the run is completed")
        return rig.text(0)


def test_a_pod_saves_and_restores_on_a_python_without_boto3(runtime: Path, tmp_path: Path, lowest: str) -> None:
    """Probe, settle, multipart uploads, commit, retention with its deletes, history, end; then a second job restores
    by ranged reads.
    """
    first = s3.fresh_uri()
    env = {**s3.environment(s3.endpoint()), "PYTHONPATH": "", "HOME": ""}
    said = train(tmp_path / "one", runtime, lowest, first, env)
    assert "boto3 here: None path: []" in said and "from 0" in said
    again = train(tmp_path / "two", runtime, lowest, s3.fresh_uri(), env | {contract.ENV_AGENT_SPEC: spec_of(first)})
    assert "from 2" in again


def spec_of(resume_from: str) -> str:
    """A job beside, whose first attempt goes on from the checkpoint of another's folder."""
    spec = {
        "processes_per_worker": 1,
        "rendezvous_port": 29500,
        "storage": s3.fresh_uri(),
        "keep": 1,
        "score_attribute": None,
        "score_order": "max",
    }
    return json.dumps(spec | {"resume_from": f"{resume_from}/checkpoints/1-1-2"})


class Tokens(BaseHTTPRequestHandler):
    """Answers AssumeRoleWithWebIdentity as STS does."""

    def do_POST(self) -> None:
        asked = {
            name: values[0]
            for name, values in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()
        }
        assert isinstance(self.server, Server)
        self.server.asked.append(asked)
        space = "https://sts.amazonaws.com/doc/2011-06-15/"
        # The S3 server of the tests knows no sessions: without a token, the keys are an ordinary user's.
        keys = f"<AccessKeyId>{s3.ACCESS}</AccessKeyId><SecretAccessKey>{s3.SECRET}</SecretAccessKey><SessionToken></SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
        text = (
            "<R "
            f'xmlns="{space}"><AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials></AssumeRoleWithWebIdentityResult></R>'
        )
        body = (
            text.replace("<R ", "<AssumeRoleWithWebIdentityResponse ")
            .replace("</R>", "</AssumeRoleWithWebIdentityResponse>")
            .encode()
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Remembers what it was asked."""

    asked: list[dict[str, str]]


@pytest.fixture
def sts() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Tokens)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_service_accounts_role_is_assumed(runtime: Path, tmp_path: Path, lowest: str, sts: Server) -> None:
    """As on a cluster with web identity: a token in a file and a role; no keys anywhere."""
    token = tmp_path / "token"
    token.write_text("the pod's token")
    env = {
        name: value
        for name, value in s3.environment(s3.endpoint()).items()
        if name not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    }
    env |= {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/train",
        "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{sts.server_address[1]}",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(runtime / "lib"),
    }
    request = json.dumps({"id": 1, "op": "probe", "storage": s3.fresh_uri()}) + "\n"
    command = [lowest, "-m", "trainjob.checkpoint.storage_child.child"]
    with subprocess.Popen(
        command, env=env, cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(request)
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"id": 1, "ok": True}
        child.stdin.close()
        assert child.wait(HANG_S) == 0
    assert [(ask["Action"], ask["WebIdentityToken"], ask["RoleArn"]) for ask in sts.asked] == [
        ("AssumeRoleWithWebIdentity", "the pod's token", "arn:aws:iam::123456789012:role/train")
    ]
