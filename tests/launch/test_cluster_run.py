"""fit() and submit() on a cluster: a real API server, a node with logs, and the test as the operator."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from cluster.apiserver import ApiServer
from support.apiserver import on_apiserver
from support.cluster_cli import attempt, condition
from support.log_kubelet import LogKubelet
from support.patience import HANG_S
from trainjob import (
    Checkpoint,
    ClusterRun,
    Kubernetes,
    RunConfig,
    ScalingConfig,
    TorchTrainer,
    TrainingFailedError,
    UserCallback,
)
from trainjob.cli.cluster import connect
from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import Api, ApiError
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.handover.returned import new_key, sealed
from trainjob.screen import notebook
from trainjob_api import contract

pytestmark = on_apiserver


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "sprung"

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


class Operator:
    """Does what the operator would: sees jobs, starts pods, writes status."""

    def __init__(self, server: ApiServer, namespace: str, kubelet: LogKubelet) -> None:
        self.server, self.namespace, self.kubelet = server, namespace, kubelet

    @property
    def path(self) -> str:
        return f"/apis/trainjob.dev/v1alpha1/namespaces/{self.namespace}/trainjobs"

    def job(self) -> dict[str, Any]:
        deadline = time.monotonic() + HANG_S
        while not (found := self.server.request("GET", self.path)["items"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return dict(found[0])

    def status(self, **fields: Any) -> None:
        self.server.request("PATCH", f"{self.path}/{self.job()['metadata']['name']}/status", {"status": fields})

    def run(self, *lines: str) -> None:
        job = self.job()
        name = job["metadata"]["name"]
        self.kubelet.pod(job, 0)
        self.status(
            slots="0",
            attempt=attempt(1, "0", 1),
            phase="Running",
            progress={"position": 2, "metrics": {"loss": 0.5}, "step": 2},
        )
        self.kubelet.write(f"{name}-0", *lines)

    def end(self, type_: str, **fields: Any) -> None:
        self.status(conditions=[condition(type_, "True", "Why", "because")], phase=type_, **fields)
        self.kubelet.finish(f"{self.job()['metadata']['name']}-0")


@pytest.fixture
def operator(apiserver: ApiServer, api_namespace: str) -> Iterator[Operator]:
    with LogKubelet(apiserver, api_namespace) as kubelet:
        yield Operator(apiserver, api_namespace, kubelet)


def backend_of(operator: Operator, folder: str | Path = "/data", **more: Any) -> Kubernetes:
    """Its cluster, and a volume at `folder`."""
    return Kubernetes(
        image="x",
        namespace=operator.namespace,
        kubeconfig=str(operator.server.kubeconfig),
        volumes={str(folder): "claim"},
        **more,
    )


def trainer(operator: Operator, backend: Kubernetes | None = None, **run: Any) -> TorchTrainer:
    return TorchTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(**{"name": "digits", **run}),
        backend=backend or backend_of(operator),
    )


def meanwhile(*steps: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: [step() for step in steps], daemon=True)
    thread.start()
    return thread


CHECKPOINT = {"latest": {"id": "1-1-2", "step": 2, "uri": "/data/runs/1-1-2", "bytes": 1}, "count": 1}


class Heard(UserCallback):
    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.failures: list[Any] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.reports.append(metrics)

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        self.failures.append(worker_exceptions)


def test_in_a_notebook_a_job_of_a_cluster_has_the_view(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []

    class Cell:
        def draw(self, html: str, text: str) -> None:
            drawn.append(text)

    monkeypatch.setattr(notebook, "in_kernel", lambda: True)
    monkeypatch.setattr(notebook, "CellOutput", Cell)
    thread = meanwhile(lambda: operator.run("r00 | step 1"), lambda: operator.end("Complete", checkpoint=CHECKPOINT))
    trainer(operator, storage_path="/data/runs").fit()
    thread.join(HANG_S)
    assert "Complete" in drawn[-1] and "attempt 1 started" in drawn[-1]
    shown = capsys.readouterr()
    assert "r00 | step 1" in shown.out and "attempt 1" not in shown.err


def test_fit_shows_rank_0_and_returns_what_the_job_reported(
    operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    thread = meanwhile(
        lambda: operator.run("r00 | step 1", "r01 | not shown"), lambda: operator.end("Complete", checkpoint=CHECKPOINT)
    )
    result = trainer(operator, callbacks=[heard], storage_path="/data/runs").fit()
    thread.join(HANG_S)
    shown = capsys.readouterr()
    assert "r00 | step 1" in shown.out
    assert "not shown" not in shown.out
    assert "attempt 1 started" in shown.err and "loss=0.5" in shown.err
    assert (result.metrics, result.error) == ({"loss": 0.5}, None)
    assert result.checkpoint is not None
    assert (result.checkpoint.uri, result.checkpoint.step) == ("/data/runs/1-1-2", 2)
    assert heard.reports == [[{"loss": 0.5}]]
    carried = operator.server.request("GET", f"/api/v1/namespaces/{operator.namespace}/configmaps")["items"]
    assert [
        found["metadata"]["ownerReferences"][0]["name"] for found in carried if "-payload-" in found["metadata"]["name"]
    ] == ["digits"]


def test_a_failed_job_is_an_error_with_the_first_cause_and_the_result(operator: Operator) -> None:
    failure = {
        "attempt": 1,
        "time": "2026-01-01T00:00:00Z",
        "reason": "UserCodeError",
        "rank": 0,
        "message": "rank 0 raised ValueError: bad",
        "traceback": "frames",
    }
    heard = Heard()
    thread = meanwhile(
        lambda: operator.run("r00 | x"), lambda: operator.end("Failed", lastFailure=failure, checkpoint=CHECKPOINT)
    )
    with pytest.raises(TrainingFailedError, match="ValueError: bad") as raised:
        trainer(operator, callbacks=[heard]).fit()
    thread.join(HANG_S)
    assert (raised.value.rank, raised.value.reason, raised.value.worker_traceback) == (0, "UserCodeError", "frames")
    assert raised.value.result is not None
    assert raised.value.result.metrics == {"loss": 0.5}
    assert [list(found) for found in heard.failures] == [[0]]


def test_a_handle_waits_follows_and_cancels(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainer(operator).submit()
    assert "has no storage" in capsys.readouterr().err
    with pytest.raises(TimeoutError, match="digits is not started"):
        run.wait(timeout_s=0.1)
    operator.run("r00 | a", "r01 | b")
    lines = run.logs("all")
    assert [next(lines), next(lines)] == ["r00 | a", "r01 | b"]
    lines.close()
    again = ClusterRun.attach("digits", namespace=operator.namespace, kubeconfig=str(operator.server.kubeconfig))
    assert again.job().status.phase == "Running"
    with pytest.raises(LaunchError, match="digits is Running in namespace"):
        trainer(operator).submit()
    again.cancel()
    with pytest.raises(LaunchError, match="was cancelled"):
        run.wait()
    second = trainer(operator).submit()  # a cancelled one makes room
    assert second.job().spec.suspend is False
    second.delete()
    with pytest.raises(LaunchError, match="there is no TrainJob"):
        second.job()


def test_a_shared_storage_that_is_the_job_s_own_gives_the_whole_result(
    operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainjob.launch.cluster.cluster_results import Reports, result_of

    run = trainer(operator).submit()
    operator.run()
    operator.end("Complete", checkpoint=CHECKPOINT)
    job = run.job()
    stored = job.model_copy(
        update={
            "spec": job.spec.model_copy(
                update={"checkpoint": job.spec.checkpoint.model_copy(update={"storage": str(tmp_path)})}
            )
        }
    )
    folder = tmp_path / operator.namespace / "digits"
    from trainjob.checkpoint.reading import runs
    from trainjob.checkpoint.stores.opening import open_store

    folder.mkdir(parents=True)
    runs.claim(open_store(str(folder)), "another uid", "auto", [])
    assert result_of(stored).metrics == {"loss": 0.5}  # somebody else's folder: what the status says
    runs.claim(open_store(str(folder)), job.metadata.uid, "none", [])
    assert result_of(stored).metrics is None  # its own: read from there, and there was no report
    assert result_of(stored).path == str(folder)
    assert result_of(stored).return_value is None
    key = run.return_key(stored)
    assert key is not None and ClusterRun(run._api, run.namespace, run.name).return_key(job) == key
    file = folder / "runs" / "2.returned.pkl"
    file.write_bytes(sealed(key, cloudpickle.dumps({"loss": 0.25})))
    assert result_of(stored, return_key=key).return_value == {"loss": 0.25}
    capsys.readouterr()
    for foreign in (cloudpickle.dumps(Trap(tmp_path)), sealed(new_key(), cloudpickle.dumps(Trap(tmp_path))), b""):
        file.write_bytes(foreign)
        assert result_of(stored, return_key=key).return_value is None
        assert "is not read: it does not come from this job's ranks" in capsys.readouterr().err
    file.write_bytes(sealed(key, cloudpickle.dumps(Trap(tmp_path))))
    assert result_of(stored).return_value is None
    assert "is not read: this launcher has no key for it" in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists(), "a stranger's code ran"
    file.write_bytes(sealed(key, b"of another version"))
    assert result_of(stored, return_key=key).return_value is None
    assert f"the return value in {folder} cannot be read here" in capsys.readouterr().err
    history = folder / "history"
    history.mkdir()
    rows: list[dict[str, Any]] = [
        {"kind": "start", "position": 0},
        *({"kind": "report", "position": at, "metrics": {"step": at}} for at in (1, 2, 3)),
    ]
    rows[3]["ranks"] = [{"step": 3}, {"step": 30}]
    (history / "2-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    reports = Reports()

    def heard(reports: Reports) -> list[Any]:
        return [report.by_rank for report in reports.new(stored)]

    assert heard(reports) == [[{"step": 1}], [{"step": 2}]], "each report, though the status shows only the newest"
    (history / "2-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert heard(reports) == [[{"step": 3}, {"step": 30}]]
    assert result_of(job).return_value is None
    assert "this machine does not see" not in capsys.readouterr().err, "it has no storage at all"


@pytest.mark.parametrize("of_another_job", [False, True], ids=["no seal", "another job's seal"])
def test_fit_refuses_a_return_value_that_somebody_forged_in_storage(
    operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str], of_another_job: bool
) -> None:
    from trainjob.checkpoint.reading import runs
    from trainjob.checkpoint.stores.opening import open_store

    body = cloudpickle.dumps(Trap(tmp_path))

    def forge() -> None:
        folder = tmp_path / "runs" / operator.namespace / "digits"
        folder.mkdir(parents=True)
        runs.claim(open_store(str(folder)), operator.job()["metadata"]["uid"], "none", [])
        (folder / "runs" / "1.returned.pkl").write_bytes(sealed(new_key(), body) if of_another_job else body)

    made = trainer(operator, backend_of(operator, tmp_path), storage_path=str(tmp_path / "runs"))
    thread = meanwhile(operator.run, forge, lambda: operator.end("Complete", checkpoint=CHECKPOINT))
    result = made.fit()
    thread.join(HANG_S)
    assert (result.error, result.return_value) == (None, None)
    assert "is not read: it does not come from this job's ranks" in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists(), "a stranger's code ran"


class TokenServer:
    """Before an API server: takes one token at a time, and counts the requests that it refused."""

    def __init__(self, good: str, behind: Callable[[str, str, Any], Any]) -> None:
        self.good, self.behind, self.refused = good, behind, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers.get("Authorization") == f"Bearer {outer.good}"
                outer.refused += not known
                given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, answer = 401, '{"message": "Unauthorized", "reason": "Unauthorized"}'
                if known:
                    try:
                        found = outer.behind(self.command, self.path, json.loads(given) if given else None)
                        code, answer = 200, json.dumps(found)
                    except urllib.error.HTTPError as error:
                        code, answer = error.code, str(error.msg)
                body = answer.encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PATCH = do_GET

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder: Path, token: str) -> Path:
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        }
        path.write_text(json.dumps(config))
        return path


@pytest.fixture
def guarded(apiserver: ApiServer) -> Iterator[TokenServer]:
    """The API server behind one that takes `first`."""
    made = TokenServer("first", apiserver.request)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_token_that_ended_is_read_anew_once_and_then_told(guarded: TokenServer, tmp_path: Path) -> None:
    api = Api.connect(kubeconfig=str(guarded.kubeconfig(tmp_path, "first")))
    assert "gitVersion" in api.document("/version")
    guarded.good = "second"
    guarded.kubeconfig(tmp_path, "second")  # as a log-in or a rotation writes it
    assert "gitVersion" in api.document("/version")
    assert guarded.refused == 1
    guarded.good = "third"
    with pytest.raises(ApiError, match="does not know you") as refused:
        api.document("/version")
    assert (refused.value.status, guarded.refused) == (401, 3), "once more with what the file says, and no loop"
    assert "log in again" in refused.value.next_step


@pytest.mark.parametrize(
    "said", ["404 page not found\n", '{"message": "the server could not find the requested resource"}']
)
def test_a_cluster_that_does_not_know_trainjobs_is_told_as_that(
    guarded: TokenServer, tmp_path: Path, said: str
) -> None:
    def unknown(method: str, path: str, body: Any) -> Any:
        raise urllib.error.HTTPError(path, 404, said, Message(), None)

    guarded.behind = unknown
    api = Api.connect(kubeconfig=str(guarded.kubeconfig(tmp_path, "first")))
    asked = (lambda: jobs_api.get(api, "team", "digits"), lambda: api.items(jobs_api.collection(None)))
    for ask in asked:
        with pytest.raises(ApiError, match="the CRD is not installed") as refused:
            ask()
        assert connect.code_of(refused.value) == contract.CLI_ERROR, "not the code of a job that is not there"
        assert "how to install" in refused.value.next_step


def test_fit_that_loses_its_access_says_that_the_job_goes_on(
    operator: Operator, guarded: TokenServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = Kubernetes(image="x", namespace=operator.namespace, kubeconfig=str(guarded.kubeconfig(tmp_path, "first")))

    looks = 0

    def until_looked_at(method: str, path: str, body: Any) -> Any:
        nonlocal looks
        found = operator.server.request(method, path, body)
        looks += method == "GET" and path.endswith("/trainjobs/digits")
        if looks == 2:
            guarded.good = "nobody's"
        return found

    guarded.behind = until_looked_at
    with pytest.raises(ApiError, match="does not know you"):
        trainer(operator, backend).fit()
    said = capsys.readouterr().err
    assert f"continues: trainjob.ClusterRun.attach('digits', namespace='{operator.namespace}')" in said
    assert operator.job()["metadata"]["name"] == "digits"


def test_a_run_on_the_cluster_is_restored_there(operator: Operator, tmp_path: Path) -> None:
    """By its folder on a storage that this machine sees too, without saying again where and what it was."""
    storage = tmp_path / "runs"
    storage.mkdir()
    backend = backend_of(operator, storage)
    first = TorchTrainer(
        lambda config: None,
        train_loop_config={"lr": 0.5},
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(name="digits", storage_path=storage),
        backend=backend,
    )
    folder = storage / operator.namespace / "digits"
    assert not TorchTrainer.can_restore(folder)
    run = first.submit()
    assert TorchTrainer.can_restore(folder, backend=backend)
    with pytest.raises(LaunchError, match=r"digits is .* in namespace .*follows it"):
        TorchTrainer.restore(folder).submit()  # it still runs
    uid = operator.job()["metadata"]["uid"]
    operator.run()
    operator.end("Failed")

    again = TorchTrainer.restore(folder).submit()
    assert (again.namespace, again.name) == (run.namespace, run.name)
    made = operator.job()
    assert made["metadata"]["uid"] != uid, "a new object of the same name, which resumes from the same storage"
    assert made["spec"]["workers"] == 3 and made["spec"]["checkpoint"]["storage"] == str(storage)
    assert "resumeFrom" not in made["spec"]["checkpoint"], "auto: the newest checkpoint"

    with pytest.raises(ConfigError, match="the run that is restored was in namespace"):
        TorchTrainer.restore(folder, backend=Kubernetes(image="x", namespace="another"))
    other = TorchTrainer.restore(folder, scaling_config=ScalingConfig(num_workers=1), backend=Kubernetes(image="y"))
    assert other._backend is not None and (other._backend.image, other._backend.namespace) == ("y", operator.namespace)


def test_what_restore_needs_holds_no_values_of_variables_and_is_that_of_a_job_that_there_is(
    operator: Operator, tmp_path: Path
) -> None:
    storage = tmp_path / "runs"
    storage.mkdir()
    side: dict[str, Any] = {"name": "side", "image": "y", "env": [{"name": "LATER", "value": "hidden-2"}]}

    def with_token(token: str) -> TorchTrainer:
        template = {"spec": {"containers": [{"name": "trainer"}, side]}}
        backend = backend_of(operator, storage, env={"TOKEN": token}, template=template)
        return trainer(operator, backend, storage_path=storage)

    with_token("hidden-1").submit()
    folder = storage / operator.namespace / "digits"
    kept = (folder / "trainer.pkl").read_bytes()
    assert b"hidden" not in kept
    with pytest.raises(LaunchError, match=r"LATER, TOKEN.*backend=trainjob\.Kubernetes"):
        TorchTrainer.restore(folder)
    assert TorchTrainer.restore(folder, backend=Kubernetes(image="z"))._backend is not None
    operator.run()
    operator.end("Failed")
    with pytest.raises(ApiError):
        with_token("x" * 4_000_000).submit()  # more than the API server takes
    assert (folder / "trainer.pkl").read_bytes() == kept


def test_a_checkpoint_of_another_run_is_where_a_cluster_s_job_begins(operator: Operator, tmp_path: Path) -> None:
    TorchTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="finer", storage_path="/data"),
        resume_from_checkpoint=Checkpoint("/data/team/digits/checkpoints/1-1-2"),
        backend=backend_of(operator),
    ).submit()
    assert operator.job()["spec"]["checkpoint"]["resumeFrom"] == "/data/team/digits/checkpoints/1-1-2"
