"""What `make bench-k8s` makes for Kubeflow Trainer and reads from its ranks; the cluster is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}, "uid": "u"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                            "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "theirs"}]}}},
                        },
                    }
                ]
            }
        },
    },
}


def run(code: str) -> Any:
    return json.loads(ran(code).stdout)


def ran(code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import json\nfrom benchmarks import cluster_jobs, kubeflow\n{code}"]
    path = os.pathsep.join(str(ROOT / name) for name in (".", "tests", "operator", "worker-image"))
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True, env=env)


def log(rank: int, attempt: int, began: float, *steps: float) -> str:
    """What one process prints."""
    lines = [f"rank {rank} attempt {attempt} began at {began}", f"rank {rank} attempt {attempt} joined at {began + 1}"]
    return "\n".join([*lines, *(f"rank {rank} attempt {attempt} step {n} at {at}" for n, at in enumerate(steps))])


@pytest.mark.parametrize(
    ("logs", "since", "steps", "answer"),
    [
        pytest.param([log(0, 10, 1.0, 3.0, 5.0), log(1, 11, 1.0, 3.5, 5.5)], 0.0, 1, 3.5, id="the last rank counts"),
        pytest.param([log(0, 10, 1.0, 3.0, 5.0), log(1, 11, 1.0, 3.5)], 0.0, 2, 0.0, id="one has not come so far"),
        pytest.param([log(0, 10, 1.0, 3.0, 9.0), log(1, 20, 6.0, 9.0)], 5.0, 1, 0.0, id="a process from before"),
        pytest.param(
            [log(0, 10, 1.0, 3.0), log(0, 20, 6.0, 8.0, 9.0), log(1, 21, 6.0, 8.5)], 5.0, 1, 8.5, id="both are new"
        ),
        pytest.param([], 0.0, 1, 0.0, id="nothing yet"),
    ],
)
def test_the_next_step_is_the_last_ranks_by_a_process_that_began_after_the_fault(
    logs: list[str], since: float, steps: int, answer: float
) -> None:
    text = "\n".join(logs)
    assert run(f"print(json.dumps(kubeflow.next_step(cluster_jobs.parsed({text!r}), {since}, {steps})))") == answer


def test_the_peers_runtime_is_the_shipped_one_with_our_image_our_loop_and_torchrun() -> None:
    made = run(f"print(json.dumps(kubeflow.runtime({SHIPPED!r}, 'here', kubeflow.IN_PLACE)))")
    ours = run("print(json.dumps(cluster_jobs.training('steps', 'here')))")["spec"]["template"]["spec"]

    assert made["kind"] == "TrainingRuntime"
    assert made["metadata"] == {
        "name": "torch-distributed", "namespace": "here", "labels": {"trainer.kubeflow.org/framework": "torch"},
    }  # fmt: skip
    assert made["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    assert "failurePolicy" not in made["spec"]["template"]["spec"]
    (node,) = made["spec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    (container,), (own,) = pod.pop("containers"), ours.pop("containers")
    assert pod == ours
    assert container["name"] == "node"
    assert container["command"] == ["python", "-m", "torch.distributed.run", *own["command"][1:]]
    assert {name: container[name] for name in ("image", "resources", "volumeMounts")} == {
        name: own[name] for name in ("image", "resources", "volumeMounts")
    }
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert len(given) == len(container["env"]) and int(given["PET_MAX_RESTARTS"]) > 0


def test_a_policy_of_the_peer_goes_where_it_reads_it() -> None:
    settings = "kubeflow.Settings(job={'backoffLimit': 0}, policy={'maxRestarts': 3}, pod={'restartPolicy': 'Never'})"
    made = run(f"print(json.dumps(kubeflow.runtime({SHIPPED!r}, 'here', {settings})))")["spec"]["template"]["spec"]

    assert made["failurePolicy"] == {"maxRestarts": 3}
    job = made["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_sides_begin_rounds_in_turn_and_starts_are_those_of_the_shipped_rendezvous() -> None:
    code = (
        "taken = iter(range(100))\n"
        "kubeflow.installed = lambda api: ['manager:v1']\n"
        "def one(api, side, fault, settings):\n"
        "    assert (settings is None) == (side is kubeflow.OURS)\n"
        "    number = next(taken)\n"
        "    return 100.0 + number, float(number)\n"
        "kubeflow.one = one\n"
        "print(json.dumps([[each.name, each.samples, each.peer] for each in kubeflow.beside(None, 2)]))"
    )
    assert run(code) == [
        ["beside_kubeflow.apply_to_first_step", [100, 105], [101, 104]],
        ["beside_kubeflow.pod_deleted_to_next_step", [0, 5], [1, 4]],
        ["beside_kubeflow.rank_killed_to_next_step", [2, 7], [3, 6]],
    ]


def test_where_the_peer_is_not_installed_the_reason_is_said_and_nothing_measured() -> None:
    done = ran(
        "from support.kube_proxy import Refused\n"
        "class Bare:\n"
        "    def request(self, *words): raise Refused(404, 'the server could not find the requested resource')\n"
        "print(kubeflow.beside(Bare(), 3))"
    )
    assert done.stdout == "[]\n"
    assert (
        "skipped: Kubeflow Trainer (the server could not find the requested resource; make bench-k8s-peers"
        in done.stderr
    )
