"""What TrainJob costs on a cluster, one line per figure: `name value unit`, or with a peer `name ours peer ratio`.
`make bench-k8s` runs it.

    PYTHONPATH=tests python -m benchmarks.kubernetes [--rounds N] [--only NAME ...] [--results FOLDER]

On the cluster that KUBECONFIG names, with the operator installed and nothing else to do. Raw samples are kept as JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import kubeflow
from benchmarks.cluster_jobs import (
    Leader,
    Watch,
    first_step,
    kill_rank_1,
    namespace,
    pod_marks,
    pods_path,
    said,
    training,
)
from benchmarks.figures import Figure
from benchmarks.measuring import arguments, measure
from support import e2e, gated
from support.kube_proxy import Proxy, jobs, proxy
from trainjob_api import contract

PARTS = ("created", "scheduled", "runtime", "attempt", "began", "imported", "joined", "step 0")
"""On the way from apply to the first step, in their order."""
NAMES = {
    "created": "decide_and_create",
    "scheduled": "schedule",
    "runtime": "init_container",
    "attempt": "container_and_agent",
    "began": "ranks_launched",
    "imported": "import_torch",
    "joined": "rendezvous",
    "step 0": "first_step",
}
WRITING_WORKERS = 4
IDLE_JOBS = 1000
IDLE_S = 60.0
SETTLE_S = 15.0
SETTLE_WINDOWS = 12
POD_EVENTS = 400
MANY = 200


# --- One job ----------------------------------------------------------------------------------------------------------


def start(api: Proxy, rounds: int) -> list[Figure]:
    """Apply to the first step of 2 ranks, and where the time goes."""
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        with namespace("start") as where:
            times = _timeline(api, where)
        before = times["applied"]
        for part in PARTS:
            now = max(before, times[part])
            samples.setdefault(part, []).append(now - before)
            before = now
        samples.setdefault("all", []).append(times["step 0"] - times["applied"])
    whole = Figure("apply_to_first_step", "s", samples["all"])
    return [whole, *(Figure(f"apply_to_first_step.{NAMES[part]}", "s", samples[part]) for part in PARTS)]


def _timeline(api: Proxy, where: str) -> dict[str, float]:
    watch = Watch(api, pods_path(where), pod_marks)
    applied = time.time()
    api.request("POST", jobs(where), training("steps", where))
    first_step("steps", where, 1)
    marks: dict[str, float] = {}
    for (attempt, _, what), at in said("steps", where).items():
        if attempt == 1:
            marks[what] = max(at, marks.get(what, 0.0))
    committed = gated.moment(e2e.job("steps", where)["status"]["attempt"]["startedAt"])
    return {"applied": applied, **marks, **watch.seen, "attempt": committed}


def recovery(api: Proxy, rounds: int) -> list[Figure]:
    """SIGKILL of a rank, and the deletion of a pod, to the next step of rank 0."""
    kills, deletions = [], []
    with namespace("recovery") as where:
        api.request("POST", jobs(where), _without_limit(training("steps", where)))
        first_step("steps", where, 1)
        for number in range(rounds):
            killed = kill_rank_1(_second_worker(where), where)
            kills.append(first_step("steps", where, 2 + 2 * number) - killed)
            deleted = time.time()
            api.request("DELETE", f"{pods_path(where)}/{_second_worker(where)}")
            deletions.append(first_step("steps", where, 3 + 2 * number) - deleted)
    return [Figure("rank_killed_to_next_step", "s", kills), Figure("pod_deleted_to_next_step", "s", deletions)]


def _without_limit(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], "failurePolicy": {"maxFailures": -1, "noProgressAttempts": 0}}}


def _second_worker(where: str) -> str:
    """The pod of rank 1."""
    living = [pod["metadata"] for pod in e2e.pods("steps", where) if "deletionTimestamp" not in pod["metadata"]]
    return str(max(living, key=lambda metadata: int(metadata["labels"][contract.LABEL_SLOT]))["name"])


def writes(api: Proxy, rounds: int) -> list[Figure]:
    """Changes that the operator makes for a job from apply to Complete; it reports nothing, so none of them is for
    progress alone.
    """
    leader = Leader(api)
    objects, events = [], []
    for _ in range(rounds):
        with namespace("writes") as where:
            before = leader.writes()
            command = ("python", "-c", "import time; time.sleep(1)")
            api.request(
                "POST",
                jobs(where),
                e2e.training_job("silent", where, workers=WRITING_WORKERS, command=command, storage=False),
            )
            e2e.wait_for_condition("silent", where, "Complete")
            after = leader.writes()
        made = {
            resource: count - before.get(resource, 0)
            for resource, count in after.items()
            if count != before.get(resource, 0)
        }
        print(f"writes of a job of {WRITING_WORKERS} workers: {made}", file=sys.stderr)
        events.append(made.pop("events", 0.0))
        objects.append(sum(made.values()))
    return [
        Figure(f"writes_of_{WRITING_WORKERS}_workers", "writes", objects),
        Figure("goal_of_writes", "writes", [WRITING_WORKERS + 6.0]),
        Figure(f"events_of_{WRITING_WORKERS}_workers", "events", events),
    ]


# --- Many -------------------------------------------------------------------------------------------------------------


def idle(api: Proxy, rounds: int) -> list[Figure]:
    """The leader with a thousand suspended jobs, after all have been looked at."""
    leader = Leader(api)
    with namespace("idle") as where:
        bare = leader.value("process_resident_memory_bytes") / 2**20
        document = gated.looping("idle", where, spec={"suspend": True})
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda number: api.request("POST", jobs(where), _called(document, f"idle-{number}")),
                    range(IDLE_JOBS),
                )
            )
        e2e.eventually(
            "all have been looked at",
            lambda: all("status" in job for job in api.request("GET", jobs(where))["items"]),
            within_s=300,
            every_s=1.0,
        )
        taken = time.monotonic() - begun
        e2e.eventually("no turn is taken any more", lambda: _turns_in(leader, 5.0) == 0, within_s=120)
        _settle(leader)
        cpu = [_cpu_share(leader, IDLE_S) for _ in range(rounds)]
        memory = leader.value("process_resident_memory_bytes") / 2**20
        writes_before = sum(leader.writes().values())
        _cpu_share(leader, 10.0)
        made = sum(leader.writes().values()) - writes_before
    return [
        Figure(f"operator_cpu_{IDLE_JOBS}_suspended_jobs", "% of a core", [100 * share for share in cpu]),
        Figure(f"operator_memory_{IDLE_JOBS}_suspended_jobs", "MiB", [memory]),
        Figure("operator_memory_before", "MiB", [bare]),
        Figure(f"writes_in_10_s_{IDLE_JOBS}_suspended_jobs", "writes", [made]),
        Figure(f"create_and_look_at_{IDLE_JOBS}_jobs", "s", [taken]),
    ]


def pod_events(api: Proxy, rounds: int) -> list[Figure]:
    """CPU time of the leader per change of a pod that means nothing."""
    leader, samples = Leader(api), []
    with namespace("events") as where:
        gated.start("count", where, "--gates", "1", "--steps", "2", workers=4)
        gated.wait_for_step("count", where, 0)
        names = [pod["metadata"]["name"] for pod in e2e.pods("count", where)]
        for number in range(rounds):
            rest, begun, cpu = _cpu_share(leader, 15.0), time.monotonic(), leader.value("process_cpu_seconds")
            with ThreadPoolExecutor(4) as pool:
                changes = [
                    (names[i % 4], {"metadata": {"annotations": {"bench": f"{number}-{i}"}}}) for i in range(POD_EVENTS)
                ]
                list(
                    pool.map(lambda change: api.request("PATCH", f"{pods_path(where)}/{change[0]}", change[1]), changes)
                )
            time.sleep(1.0)  # the last events' turns
            used = leader.value("process_cpu_seconds") - cpu - rest * (time.monotonic() - begun)
            samples.append(1000 * used / POD_EVENTS)
    return [Figure("operator_cpu_per_pod_event", "ms", samples)]


def many_pods(api: Proxy, rounds: int) -> list[Figure]:
    """Apply to the last of 200 pods created; beside one create after the other of the same pods. None of them is
    scheduled.
    """
    ours, theirs = [], []
    for _ in range(rounds):
        with namespace("many") as where, namespace("one-by-one") as peer:
            document = training("many", where, workers=MANY)
            document["spec"]["template"]["spec"]["schedulingGates"] = [{"name": "trainjob.dev/bench"}]
            watch = Watch(api, pods_path(where), pod_marks)
            applied = time.time()
            api.request("POST", jobs(where), document)
            made = e2e.eventually(
                "all pods are there", lambda where=where: _all_of(api, where), within_s=120, every_s=0.2
            )
            ours.append(watch.seen["created"] - applied)
            copies = [_copied(pod, peer) for pod in made]
            begun = time.time()
            for copy in copies:
                api.request("POST", pods_path(peer), copy)
            theirs.append(time.time() - begun)
    return [Figure(f"create_{MANY}_pods", "s", ours, theirs, "one create after the other")]


def _all_of(api: Proxy, where: str) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = api.request("GET", pods_path(where))["items"]
    return found if len(found) == MANY else None


def _copied(pod: dict[str, Any], where: str) -> dict[str, Any]:
    metadata = {"name": pod["metadata"]["name"], "namespace": where}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def _called(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "name": name}}


def _turns_in(leader: Leader, seconds: float) -> float:
    before = leader.value("trainjob_turns")
    time.sleep(seconds)
    return leader.value("trainjob_turns") - before


def _settle(leader: Leader) -> None:
    """Wait until what the creation set off is over: the leader's CPU time falls no more from one window to the next."""
    before = _cpu_share(leader, SETTLE_S)
    for _ in range(SETTLE_WINDOWS):
        share = _cpu_share(leader, SETTLE_S)
        if share >= 0.8 * before:
            return
        before = share


def _cpu_share(leader: Leader, seconds: float) -> float:
    """Of one core, over a while."""
    begun, before = time.monotonic(), leader.value("process_cpu_seconds")
    time.sleep(seconds)
    return (leader.value("process_cpu_seconds") - before) / (time.monotonic() - begun)


MEASUREMENTS: dict[str, Callable[[Proxy, int], list[Figure]]] = {
    "start": start,
    "recovery": recovery,
    "kubeflow": kubeflow.beside,
    "writes": writes,
    "many-pods": many_pods,
    "pod-events": pod_events,
    "idle": idle,
}


def main() -> int:
    """Measure what was asked for."""
    args = arguments("python -m benchmarks.kubernetes", __doc__, MEASUREMENTS).parse_args()
    with proxy() as api:
        return measure(args, lambda name: MEASUREMENTS[name](api, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
