"""The same loop under Kubeflow Trainer on the same cluster, in turn with ours: apply to the first step, a rank that is
killed, a pod that is deleted.

Used by kubernetes.py. `make bench-k8s-peers` installs Kubeflow Trainer; where it is not there, nothing is measured.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cluster_jobs import Said, kill_rank_1, namespace, pods_path, said_in, training
from benchmarks.figures import Figure
from benchmarks.jobs import ENVIRONMENT, RANKS, RESTARTS
from support import e2e
from support.kube_proxy import Proxy, Refused, jobs
from trainjob_api import contract

NAMESPACE = "kubeflow-system"
"""Where its documentation puts it."""
JOB = "steps"
RUNTIME = "torch-distributed"
API = "/apis/trainer.kubeflow.org/v1alpha1"
SHIPPED = f"{API}/clustertrainingruntimes/{RUNTIME}"
SETTLED_STEPS = 5
"""A fault comes after so many steps."""
_WITHIN_S = 240.0


@dataclass(frozen=True)
class Side:
    """One way to run the loop on the cluster."""

    name: str
    start: Callable[[Proxy, str], None]
    """Create the job in a namespace; what it refers to is there."""
    path: Callable[[str], str]
    """Of the job in a namespace."""
    label: str
    """Of its pods."""
    index: str
    """The label with a pod's place in the job."""
    container: str
    mark: str
    """A variable that its ranks have and their launcher has not."""

    def pods(self, where: str) -> list[dict[str, Any]]:
        """Those that are there, on their way out or not."""
        return e2e.listed("pods", where, f"{self.label}={JOB}")

    def second(self, where: str) -> str:
        """The pod of rank 1."""
        living = [pod["metadata"] for pod in self.pods(where) if "deletionTimestamp" not in pod["metadata"]]
        return str(max(living, key=lambda metadata: int(metadata["labels"][self.index]))["name"])

    def next_step(self, where: str, since: float, steps: int = 1) -> float:
        """When all ranks have done so many steps in processes that began after a moment; waits for it."""
        return e2e.eventually(
            f"{self.name}: a step of all ranks",
            lambda: next_step(said_in(self.pods(where), where, self.container), since, steps),
            within_s=_WITHIN_S,
        )


@dataclass(frozen=True)
class Settings:
    """What a user can choose of a peer's answer to a fault."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Of torchrun and the ranks."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Of the Kubernetes Job under it."""
    policy: Mapping[str, Any] | None = None
    """The JobSet's failurePolicy."""
    pod: Mapping[str, Any] = field(default_factory=dict)


IN_PLACE = Settings(
    {
        "PET_MAX_RESTARTS": str(RESTARTS),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{JOB}-node-0-0.{JOB}:29400",
        "PET_RDZV_ID": JOB,
    }
)
"""torchrun starts its ranks again by itself, inside their pods; its agents tell each other through c10d."""
RECREATED = Settings(
    job={"backoffLimit": 0},
    policy={"maxRestarts": RESTARTS, "restartStrategy": "BlockingRecreate"},
    pod={"restartPolicy": "Never"},
)
"""A pod that has gone fails its Job, and JobSet makes all pods anew."""


def next_step(said: Said, since: float, steps: int = 1) -> float:
    """When the last rank had done so many steps in a process that began after that moment; 0: not all have."""
    began = {(attempt, rank) for (attempt, rank, what), at in said.items() if what == "began" and at > since}
    done: dict[tuple[int, int], list[float]] = {}
    for (attempt, rank, what), at in said.items():
        if what.startswith("step") and (attempt, rank) in began:
            done.setdefault((attempt, rank), []).append(at)
    reached: dict[int, float] = {}
    for (_, rank), times in done.items():
        if len(times) >= steps:
            at = sorted(times)[steps - 1]
            reached[rank] = min(at, reached.get(rank, at))
    return max(reached.values()) if len(reached) == RANKS else 0.0


def runtime(shipped: Mapping[str, Any], where: str, settings: Settings) -> dict[str, Any]:
    """The runtime torch-distributed as it is shipped, with the image, the loop and the volumes of our own job."""
    ours = training(JOB, where)["spec"]["template"]["spec"]
    spec = copy.deepcopy(dict(shipped["spec"]))
    spec["mlPolicy"]["numNodes"] = RANKS
    (replicated,) = spec["template"]["spec"]["replicatedJobs"]
    if settings.policy is not None:
        spec["template"]["spec"]["failurePolicy"] = dict(settings.policy)
    of_job = replicated["template"]["spec"]
    of_job.update(settings.job)
    pod = of_job["template"]["spec"]
    (container,) = pod["containers"]
    (own,) = ours["containers"]
    script = own["command"][1:]
    container.update(own, name=container["name"], command=["python", "-m", "torch.distributed.run", *script])
    container["env"] = [*own["env"], *_variables({**ENVIRONMENT, **settings.environment}, own["env"])]
    pod.update({key: value for key, value in ours.items() if key != "containers"}, **settings.pod)
    return {
        "apiVersion": shipped["apiVersion"],
        "kind": "TrainingRuntime",
        "metadata": {"name": RUNTIME, "namespace": where, "labels": dict(shipped["metadata"].get("labels", {}))},
        "spec": spec,
    }


def _variables(values: Mapping[str, str], but: list[dict[str, Any]]) -> list[dict[str, str]]:
    taken = {entry["name"] for entry in but}
    return [{"name": name, "value": value} for name, value in values.items() if name not in taken]


def train_job(where: str) -> dict[str, Any]:
    """Kubeflow's TrainJob: one rank in each of two pods."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": JOB, "namespace": where},
        "spec": {
            "runtimeRef": {"kind": "TrainingRuntime", "name": RUNTIME},
            "trainer": {"numNodes": RANKS, "numProcPerNode": 1},
        },
    }


OURS = Side(
    "TrainJob",
    lambda api, where: _post(api, jobs(where), training(JOB, where)),
    lambda where: jobs(where, JOB),
    contract.LABEL_JOB,
    contract.LABEL_SLOT,
    contract.TRAINER_CONTAINER,
    contract.ENV_AGENT_SOCKET,
)
PEER = Side(
    "Kubeflow Trainer",
    lambda api, where: _post(api, f"{API}/namespaces/{where}/trainjobs", train_job(where)),
    lambda where: f"{API}/namespaces/{where}/trainjobs/{JOB}",
    "jobset.sigs.k8s.io/jobset-name",
    "batch.kubernetes.io/job-completion-index",
    "node",
    "TORCHELASTIC_RUN_ID",
)


def _post(api: Proxy, path: str, document: dict[str, Any]) -> None:
    api.request("POST", path, document)


def kill(api: Proxy, side: Side, where: str) -> float:
    """SIGKILL rank 1; returns when."""
    return kill_rank_1(side.second(where), where, container=side.container, mark=side.mark)


def delete(api: Proxy, side: Side, where: str) -> float:
    """Delete rank 1's pod; returns when."""
    pod, at = side.second(where), time.time()
    api.request("DELETE", f"{pods_path(where)}/{pod}")
    return at


def _would_take(api: Proxy, where: str) -> bool:
    try:
        _post(api, f"{API}/namespaces/{where}/trainjobs?dryRun=All", train_job(where))
    except Refused:
        return False
    return True


Fault = Callable[[Proxy, Side, str], float]
FAULTS: dict[str, tuple[Fault, Settings]] = {"pod_deleted": (delete, RECREATED), "rank_killed": (kill, IN_PLACE)}
"""With the settings under which Kubeflow Trainer is quickest after each."""
STARTED = "pod_deleted"
"""Its jobs rendezvous as the runtime is shipped, which starts quicker than c10d."""


def one(api: Proxy, side: Side, fault: Fault, settings: Settings | None) -> tuple[float, float]:
    """A job of its own: seconds from apply to the first step of all ranks, and from a fault to the next one."""
    with namespace("beside") as where:
        if settings is not None:
            document = runtime(api.request("GET", SHIPPED), where, settings)
            api.request("POST", f"{API}/namespaces/{where}/trainingruntimes", document)
            e2e.eventually("the runtime is known to its webhook", lambda: _would_take(api, where))
        applied = time.time()
        side.start(api, where)
        first = side.next_step(where, applied)
        side.next_step(where, applied, SETTLED_STEPS)
        struck = fault(api, side, where)
        again = side.next_step(where, struck)
        api.request("DELETE", side.path(where))
        e2e.eventually(f"the pods of {side.name} are gone", lambda: not side.pods(where))
    return first - applied, again - struck


def installed(api: Proxy) -> list[str]:
    """The images of its controllers, which name their versions; none, with the reason on standard error: not there."""
    try:
        api.request("GET", SHIPPED)
        found = api.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    except Refused as error:
        print(f"skipped: {PEER.name} ({error}; make bench-k8s-peers installs it)", file=sys.stderr)
        return []
    return [each["spec"]["template"]["spec"]["containers"][0]["image"] for each in found]


def beside(api: Proxy, rounds: int) -> list[Figure]:
    """Ours and Kubeflow Trainer in turn, each time a job of its own, so that no back-off of an earlier fault counts.

    Apply to the first step of 2 ranks in 2 pods; deletion of the pod of rank 1, and SIGKILL of rank 1, to the next step
    of all ranks. Nobody saves or resumes: both sides start from nothing.
    """
    images = installed(api)
    if not images:
        return []
    print(f"beside {', '.join(images)}", file=sys.stderr)
    starts: dict[tuple[str, str], list[float]] = {}
    again: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for name, (fault, settings) in FAULTS.items():
            for side in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
                first, after = one(api, side, fault, settings if side is PEER else None)
                starts.setdefault((name, side.name), []).append(first)
                again.setdefault((name, side.name), []).append(after)

    def figure(name: str, samples: Mapping[tuple[str, str], list[float]], fault: str) -> Figure:
        ours, theirs = (samples[fault, side.name] for side in (OURS, PEER))
        return Figure(f"beside_kubeflow.{name}", "s", ours, theirs, PEER.name)

    found = [figure(f"{fault}_to_next_step", again, fault) for fault in FAULTS]
    return [figure("apply_to_first_step", starts, STARTED), *found]
