"""A trainer's job on a cluster: start it, follow it, read what came of it.

`TorchTrainer.fit()` and `.submit()` call it; `ClusterRun` is the handle that users keep, or make anew from a job's
name.
"""

from __future__ import annotations

import base64
import os
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from trainjob.launch import job as jobs
from trainjob.launch import worker
from trainjob.launch.cluster import bucket, follow, jobs_api, kubernetes
from trainjob.launch.cluster.api import Api, ApiError, Manifest
from trainjob.launch.cluster.cluster_results import Reports, result_of
from trainjob.launch.errors import LaunchError
from trainjob.launch.handover import carry, payload, returned, source
from trainjob.launch.handover.callbacks import follows_reports
from trainjob.launch.outcome import log_choice as ranks
from trainjob.launch.outcome import result as results
from trainjob.launch.outcome import stored, verdict
from trainjob.launch.outcome.hearers import Hearers
from trainjob.screen import display as displays
from trainjob.screen import streams, wording
from trainjob.screen.asked import Asker, job_in_words_of
from trainjob.screen.display import Display
from trainjob_api import contract, defaults
from trainjob_api.validation import parse_trainjob

if TYPE_CHECKING:
    from trainjob.launch.cluster.kubernetes import Kubernetes
    from trainjob.launch.outcome.stored import Settings
    from trainjob_api.v1alpha1 import TrainJob

GONE_S = 60.0
"""How long a deleted job may take to go."""
RETRY_S = 0.5
KEEP_S = 5.0
"""So long a bucket is tried that only the pods may have a way to."""


class ClusterRun:
    """A job on a cluster. It continues whether this object lives or not.

    ```python
    def accuracy(name):
        run = trainjob.ClusterRun.attach(name, namespace="team")  # or what TorchTrainer.submit() returned
        for line in run.logs("0", tail=20):
            print(line)
        return run.result(timeout_s=3600).metrics["accuracy"]
    ```
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api = api
        self.namespace = namespace
        self.name = name

    def __repr__(self) -> str:
        return f"ClusterRun({self.namespace}/{self.name})"

    @classmethod
    def attach(
        cls, name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> ClusterRun:
        """The handle of a job that is there. Raises LaunchError when it is not."""
        api = Api.connect(kubeconfig=kubeconfig, context=context)
        found = cls(api, namespace or api.namespace, name)
        found.job()
        return found

    def job(self) -> TrainJob:
        """The TrainJob as it is now."""
        return jobs_api.read(jobs_api.get(self._api, self.namespace, self.name))

    def wait(self, timeout_s: float | None = None) -> TrainJob:
        """Until it is complete or failed. Raises TimeoutError; LaunchError when it was cancelled or deleted."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for update in self._updates(follow.Wanted(namespace=self.namespace, name=self.name)):
            if update.job is not None and update.job.status.finished:
                return update.job
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is {_phase(update.job)} after {timeout_s:g} s")
        raise AssertionError("unreachable")

    def logs(self, ranks_wanted: str = "0", *, tail: int | None = None) -> Iterator[str]:
        """The lines of those ranks (`0`, `0,3-5`, `all`) as they come, until the job is over."""
        wanted = follow.Wanted(
            namespace=self.namespace, name=self.name, logs=True, selection=ranks.parse(ranks_wanted), tail=tail
        )
        for update in follow.follow(self._api, wanted):
            if update.kind == "line":
                yield update.text

    def result(self, timeout_s: float | None = None) -> results.Result:
        """Wait for the end and read what the job left. Raises TrainingFailedError with the first cause when it
        failed.
        """
        job = self.wait(timeout_s)
        return conclude(job, self.return_key(job))

    def return_key(self, job: TrainJob) -> str | None:
        """By which what the function returned is known, as the cluster keeps it with the function; None: it is not
        there (a job of no trainer), or may not be read.
        """
        name = carry.payload_map(job)
        if name is None:
            return None
        try:
            found = self._api.get(jobs_api.core(self.namespace, "configmaps", name))
            return payload.header_of(base64.b64decode(found["binaryData"][carry.PAYLOAD])).return_key
        except (ApiError, KeyError, TypeError, ValueError):
            return None

    def cancel(self) -> None:
        """Stop it for good, keep its checkpoints; `tj resume` would let it continue."""
        jobs_api.suspend(self._api, self.namespace, self.name, cancelled=True)

    def delete(self) -> None:
        """Delete the TrainJob and its pods; checkpoints stay on storage."""
        jobs_api.delete(self._api, self.namespace, self.name)

    def _updates(self, wanted: follow.Wanted) -> Iterator[follow.Update]:
        """Updates; a job that was cancelled or deleted is an error."""
        for update in follow.follow(self._api, wanted):
            yield update
            if update.kind == "gone":
                raise LaunchError(f"{update.text}: its checkpoints stay on storage")
            if update.cancelled:
                raise LaunchError(
                    f"{self.name} was cancelled: `tj resume {self.name} -n {self.namespace}` lets it continue"
                )


def submit(settings: Settings, backend: Kubernetes) -> ClusterRun:
    """Pack the function, create the TrainJob, return its handle. A finished job of that name makes room: the new one
    resumes from its checkpoints.
    """
    api = Api.connect(kubeconfig=backend.kubeconfig, context=backend.context)
    namespace = backend.namespace or api.namespace
    run = settings.run
    name = jobs.job_name(run.name) if run.name else jobs.unique_name(getattr(settings.loop, "__name__", "train"))
    document, carried = packed(settings, backend, namespace, name)
    job = parse_trainjob(document)
    make_room(api, namespace, name)
    jobs_api.create(api, document, carried)
    # Not before: of a job that is refused nothing is kept.
    _keep(settings, backend, job)
    if "storage" not in document["spec"].get("checkpoint", {}):
        _say(
            f"{name} has no storage: checkpoints survive a rank's end, not its pod's (RunConfig.storage_path and "
            "Kubernetes.volumes give it one)"
        )
    return ClusterRun(api, namespace, name)


def _keep(settings: Settings, backend: Kubernetes, job: TrainJob) -> None:
    """What `TorchTrainer.restore` needs, in the job's folder, where this machine sees it: a bucket, or a shared path.
    The job does without it. Without values of variables: who reads the storage need not be one who may read the job.
    """
    folder, root = defaults.job_storage(job), job.spec.checkpoint.storage
    if folder is None or root is None or not (jobs.is_s3(folder) or os.path.isdir(root)):
        return
    try:
        if not jobs.is_s3(folder):
            os.makedirs(folder, exist_ok=True)
        with kubernetes.own_modules_by_value():
            lean, withheld = kubernetes.without_values(backend)
            stored.store(
                folder, replace(settings, backend=lean, withheld=withheld), bucket.environ(job, os.environ), KEEP_S
            )
    except (LaunchError, OSError, pickle.PicklingError, TypeError, AttributeError) as error:
        # Whatever cannot be written or pickled: the job is there already.
        _say(f"{settings.trainer}.restore() will not find this run: {error}")


def packed(settings: Settings, backend: Kubernetes, namespace: str, name: str) -> tuple[Manifest, Manifest]:
    """The TrainJob of a trainer, and the ConfigMap that carries its function."""
    with kubernetes.own_modules_by_value():
        content = payload.Payload(
            train_loop=settings.loop, config=settings.config, stop=settings.run.stop, validation=settings.validation
        )
        body = payload.dumps(content, limit=carry.LIMIT_BYTES)
    header = payload.Header(
        name=settings.run.name,
        framework=settings.framework,
        backend=settings.torch.backend,
        timeout_s=settings.torch.timeout_s,
        use_gpu=settings.scaling.use_gpu,
        return_key=returned.new_key(),
        all_ranks=follows_reports(settings.run.callbacks),
        code=source.read(settings.loop, framework=settings.framework),
    )
    files = {carry.PAYLOAD: payload.header_line(header) + body, worker.CLOUDPICKLE: kubernetes.cloudpickle_archive()}
    trainer = jobs.TrainerJob(
        command=(*jobs.escaped((backend.python, "-m", contract.WORKER_MODULE)), kubernetes.payload_path()),
        name=name,
        scaling=settings.scaling,
        run=settings.run,
        torch=settings.torch,
        resume_from=settings.resume_from,
    )
    carried = carry.config_map(namespace, name, "payload", files)
    return carry.with_payload(kubernetes.document(trainer, backend, namespace), carried["metadata"]["name"]), carried


def make_room(api: Api, namespace: str, name: str, *, whatever: bool = False) -> None:
    """Delete a job of that name that is over (`whatever`: in any state) and wait until it is gone. Raises
    LaunchError for one that is not over.
    """
    try:
        manifest = jobs_api.get(api, namespace, name)
    except ApiError as error:
        if error.absent:
            return
        raise
    job = jobs_api.read(manifest)
    if not whatever and not job.status.finished and not jobs_api.cancelled(manifest):
        raise LaunchError(
            f"{name} is {_phase(job)} in namespace {namespace}: trainjob.ClusterRun.attach({name!r}, "
            f"namespace={namespace!r}) follows it, `tj cancel {name} -n {namespace}` stops it"
        )
    jobs_api.delete(api, namespace, name)
    if not gone(api, namespace, name, job.metadata.uid, GONE_S):
        raise LaunchError(
            f"{name} was deleted, but is still there after {GONE_S:.0f} s: `kubectl get tj {name} -n {namespace} -o "
            "yaml` shows the finalizers that hold it"
        )


def gone(api: Api, namespace: str, name: str, uid: str, timeout_s: float | None) -> bool:
    """Wait until that object is not there any more; False when the time has passed."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            if jobs_api.get(api, namespace, name)["metadata"]["uid"] != uid:
                return True
        except ApiError as error:
            if error.absent:
                return True
            if not error.passing:
                raise
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_S)


def fit(settings: Settings, backend: Kubernetes) -> results.Result:
    """Submit, show rank 0's lines and what happens to the job, and read the result."""
    run = submit(settings, backend)
    display = displays.choose(plain=False, silent=settings.run.verbose == 0)
    narrator = _Narrator(settings, run, display)
    wanted = follow.Wanted(namespace=run.namespace, name=run.name, logs=True, selection=ranks.parse("0"))
    last = None
    with narrator.hearers.of_the_end():
        try:
            display.note(f"{run.name}: {wording.count(settings.scaling.most, 'rank')} in namespace {run.namespace}")
            for update in run._updates(wanted):
                last = update.job or last
                narrator.tell(update)
        except (KeyboardInterrupt, ApiError):
            display.note(
                f"{run.name} continues: trainjob.ClusterRun.attach({run.name!r}, namespace={run.namespace!r}) gets "
                "back to it, .cancel() stops it"
            )
            raise
        finally:
            display.close()
        assert last is not None
        return conclude(last, run.return_key(last))


class _Narrator:
    """Shows what happens, and calls the callbacks."""

    def __init__(self, settings: Settings, run: ClusterRun, display: Display) -> None:
        self._display, self._reports = display, Reports()
        self.hearers = Hearers(settings.run.callbacks, settings.context(run.name, f"{run.namespace}/{run.name}"))

    def tell(self, update: follow.Update) -> None:
        """One update."""
        if update.kind == "line":
            self._display.line(update.text)
        elif update.job is not None:
            self._status(update.job)
        elif update.text:
            self._display.note(update.text)

    def _status(self, job: TrainJob) -> None:
        job = job_in_words_of(Asker.PYTHON, job)
        self._display.status(job)
        self.hearers.failure(job)
        if self.hearers:
            reports = self._reports.new(job)
            if self._reports.store is not None:
                self.hearers.stored_in(self._reports.store)
            self.hearers.reports(reports)


def conclude(job: TrainJob, return_key: str | None) -> results.Result:
    """What a finished job left, or the error that says why it failed."""
    if job.status.holds("Complete"):
        return result_of(job, return_key=return_key)
    error = verdict.of_failed(job, on_a_cluster=True)
    error.result = result_of(job, error)
    raise error


def _phase(job: TrainJob | None) -> str:
    return (job.status.phase if job is not None else None) or "not started"


def _say(text: str) -> None:
    streams.say(f"tj  | {text}")
