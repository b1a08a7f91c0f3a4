"""torchrun as a pod's command: behind the agent, and in plain mode with the variables of the pod alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.ports import free_port
from support.agent_rig import Rig
from support.core import T0, make_job
from support.patience import HANG_S
from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, TrainJobStatus
from trainjob_operator.core.model import Installation
from trainjob_operator.core.pods.objects import worker_pod

pytestmark = pytest.mark.slow
TORCHRUN = Path(sys.executable).with_name("torchrun")

TRAIN = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
# One write, so that the lines of two processes do not mix.
os.write(1, f"sum {int(total)} rank {dist.get_rank()} of {dist.get_world_size()} local {os.environ['LOCAL_RANK']}\\n".encode())
if "report" in sys.argv:
    import trainjob
    trainjob.report({"sum": float(total)}, step=1)
dist.destroy_process_group()
"""

MEETS = """
import os, socket
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60).close()
who = "rank {RANK} of {WORLD_SIZE} local {LOCAL_RANK}".format(**os.environ)
os.write(1, f"{who} meets\\n".encode())
"""
"""Where a process group is made, which TRAIN does: each rank reaches the store that its launcher names."""


@pytest.fixture(autouse=True)
def _torchrun() -> None:
    if not TORCHRUN.exists():
        pytest.skip(f"{TORCHRUN} is not there: `make setup` installs torch")


def shown(rig: Rig, says: str) -> None:
    """By each of the four ranks. What a launcher's processes wrote may come a moment after its end is told."""
    words = [says.format(rank, rank % 2) for rank in range(4)]
    rig.wait(lambda: all(each in rig.text(0) + rig.text(1) for each in words), says)


def test_behind_the_agent_it_starts_once_a_pod_and_its_ranks_report(tmp_path: Path) -> None:
    with Rig(tmp_path, script=TRAIN, agents=2, processes=2, command=[str(TORCHRUN), "train.py", "report"]) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "both launchers have ended")
        assert [rig.rank(number)["kind"] for number in (0, 1)] == [contract.END_OK] * 2, rig.everything()
        shown(rig, "sum 10 rank {0} of 4 local {1}\n")
        rig.wait(lambda: (rig.report(0).get("progress") or {}).get("step") == 1, "the report arrived")


C10D = ["--rdzv_backend=c10d"]
"""As Kubeflow's users write it: the end point comes from the variables."""


def test_behind_the_agent_its_c10d_rendezvous_meets(tmp_path: Path) -> None:
    with Rig(tmp_path, script=MEETS, agents=2, processes=2, command=[str(TORCHRUN), *C10D, "train.py"]) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "both launchers have ended")
        assert [rig.rank(number)["kind"] for number in (0, 1)] == [contract.END_OK] * 2, rig.everything()
        shown(rig, "rank {0} of 4 local {1} meets\n")


@pytest.mark.parametrize(
    ("options", "script", "said_by"),
    [
        ([], TRAIN, "sum 10 rank {0} of 4 local {1}\n"),
        (C10D, MEETS, "rank {0} of 4 local {1} meets\n"),
    ],
)
def test_in_plain_mode_the_pods_variables_are_enough(
    tmp_path: Path, options: list[str], script: str, said_by: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    attempt = Attempt(number=3, state="Running", started_at=T0, members="0-1", workers=2, world_size=2, cause="Started")
    resources = {"limits": {"nvidia.com/gpu": 2}}  # two processes each
    template = {
        "spec": {
            "containers": [
                {"name": "trainer", "command": [str(TORCHRUN), *options, "train.py"], "resources": resources}
            ]
        }
    }
    job = make_job(
        TrainJobStatus(slots="0-1", attempt=attempt),
        template=template,
        runtime={"agent": "Disabled"},
        rendezvous={"port": free_port() - 3},
    )
    pods = [worker_pod(job, slot, Installation(coordinator_url="", any_master_port=True)) for slot in (0, 1)]
    running = []
    for pod in pods:
        container = pod["spec"]["containers"][0]
        env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        running.append(
            subprocess.Popen(
                container["command"],
                cwd=tmp_path,
                env={**os.environ, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    said = [process.communicate(timeout=HANG_S)[0].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    together = "".join(said)  # with c10d the order in which they meet decides who is which node
    assert all(said_by.format(rank, rank % 2) in together for rank in range(4)), said
