"""Plain mode (runtime.agent: Disabled): scripts that know nothing of TrainJob, and torchrun as the command in both
modes.
"""

from __future__ import annotations

import re

import pytest

from support import e2e, gated
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

PLAIN = {"runtime": {"agent": "Disabled"}}
SCRIPT = ("/code/plain.py", gated.FOLDER)
TORCHRUN = ("python", "-m", "torch.distributed.run")
"""What the program torchrun is; images that bring torch as files alone lack that name."""


RENDEZVOUS = pytest.mark.parametrize("backend", [(), ("--rdzv_backend=c10d",)], ids=["static", "c10d"])
"""As it is by default, and as examples for Kubeflow write it, which leave the endpoint to the environment."""


def test_a_script_that_only_reads_its_environment(namespace: str) -> None:
    """One rank fails once: the group is made anew, and the script finds its own checkpoint."""
    gated.start("plain", namespace, command=("python", *SCRIPT, "--fail-at", "3"), spec=PLAIN)
    e2e.eventually("the first group runs", lambda: "from step 0" in e2e.logs("plain-1", namespace))
    pod = e2e.get("pod", "plain-1", namespace)["spec"]
    trainer = pod["containers"][0]
    assert trainer["command"] == ["python", *SCRIPT, "--fail-at", "3"] and "initContainers" not in pod, (
        "the container is as it was written"
    )
    given = {entry["name"]: entry.get("value") for entry in trainer["env"]}
    assert (given["RANK"], given["WORLD_SIZE"], given["LOCAL_RANK"], given["MASTER_ADDR"]) == (
        "1",
        "2",
        "0",
        "plain-0.plain",
    )
    e2e.wait_for_condition("plain", namespace, "Complete")
    job = e2e.job("plain", namespace)
    assert job["status"]["attempt"]["number"] == 2 and gated.counted(job) == 1 and job["status"]["slots"] == "2-3"
    failure = job["status"]["lastFailure"]
    assert (failure["pod"], failure["exitCode"], failure["reason"]) == ("plain-1", 1, contract.REASON_EXIT)
    assert "this failure is on purpose" in failure["message"]
    assert "rank 0 of 2 local rank 0: from step 3" in e2e.logs("plain-2", namespace)
    assert "step 5 done" in e2e.logs("plain-2", namespace)
    assert "this failure is on purpose" in e2e.logs("plain-1", namespace), "the pod of the first cause keeps its log"


@RENDEZVOUS
def test_torchrun_in_plain_mode(namespace: str, backend: tuple[str, ...]) -> None:
    """torchrun finds the other node in its environment."""
    gated.start("plain", namespace, command=(*TORCHRUN, *backend, "--nproc-per-node=2", *SCRIPT), spec=PLAIN)
    e2e.wait_for_condition("plain", namespace, "Complete")
    text = gated.said("plain", namespace)
    # Two processes write to one log: their lines may run together.
    assert sorted(re.findall(r"rank (\d) of 4 local rank (\d): from step 0", text)) == [
        ("0", "0"),
        ("1", "1"),
        ("2", "0"),
        ("3", "1"),
    ]
    assert "step 5 done" in text


@RENDEZVOUS
def test_torchrun_under_the_agent(namespace: str, backend: tuple[str, ...]) -> None:
    """It is started once a pod, and its ranks report, save and are restarted as any others."""
    train = (*TORCHRUN, *backend, "--nproc-per-node=1", "/code/train.py", "--epochs", "2000")
    e2e.apply(e2e.training_job("digits", namespace, command=train, spec={"checkpoint": {"keep": 1}}))
    e2e.wait_for_step("digits", namespace, 90)
    before = e2e.uids("digits", namespace)
    e2e.kill_rank("digits-1", namespace, 1)
    e2e.eventually("the second attempt trains", lambda: "attempt 2 step" in e2e.logs("digits-0", namespace))
    assert "from epoch 0" not in e2e.logs("digits-0", namespace).split("attempt 2: ", 1)[1]
    job = e2e.job("digits", namespace)
    assert e2e.uids("digits", namespace) == before and gated.counted(job) == 1
    assert job["status"]["attempt"]["worldSize"] == 2
