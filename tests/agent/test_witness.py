"""A storage path that is another folder on each node: told at the start, with the pods that see it and those that do
not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.patience import HANG_S
from support.tuned_agent import entry
from trainjob.agent.attempts.witness import Witnesses, is_needed
from trainjob.agent.wire.from_member import Seen
from trainjob.checkpoint.stores import mounts
from trainjob_api import contract

SCRIPT = """
import trainjob
print("ranks run", flush=True)
trainjob.barrier()
"""


def elsewhere(rig: Rig, slot: int, host: str, storage: Path) -> None:
    """The agent of a slot on another host, whose storage path leads to another folder."""
    spec = {**rig._spec, "storage": str(storage)}
    rig.start(slot, {contract.ENV_POD_ADDRESS: host, contract.ENV_AGENT_SPEC: json.dumps(spec)})


@pytest.mark.slow
def test_nodes_with_folders_of_their_own_end_the_job_in_one_sentence(tmp_path: Path) -> None:
    # On a busy machine a storage child takes longer to answer than ranks wait for it.
    patient = entry(attempts__witness__PATIENCE_S=HANG_S)
    rig = Rig(tmp_path, script=SCRIPT, agents=0, storage=tmp_path / "one", entry=patient)
    with rig:
        rig.start(0)
        elsewhere(rig, 1, "127.0.0.2", tmp_path / "two")
        elsewhere(rig, 2, "127.0.0.3", tmp_path / "one")
        rig.run(1, [0, 1, 2])
        rig.wait(lambda: rig.ended(0, 1, 2, attempt=1), "all ended")
        for rank in rig.ranks().values():
            assert rank["kind"] == contract.END_NOT_SHARED, rank
            text = rank["error"]["message"]
            assert "what digits-0 wrote there is seen by digits-0, digits-2 and not by digits-1, where it is" in text
            assert "Likely an emptyDir, a hostPath or a local PersistentVolume" in text and "s3://bucket/folder" in text
        assert "ranks run" not in rig.text(1)
        assert not (tmp_path / "two").exists(), "looking makes nothing"


@pytest.mark.slow
def test_nodes_that_share_the_folder_start_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, script=SCRIPT, agents=0, storage=tmp_path / "one")
    with rig:
        rig.start(0)
        elsewhere(rig, 1, "127.0.0.2", tmp_path / "one")
        rig.run(1, [0, 1])
        rig.wait(rig.completed, "completed")


@pytest.mark.parametrize(
    ("storage", "host", "needed"),
    [
        ("/store", "10.0.0.2", True),
        ("file:///store", "10.0.0.2", True),
        ("/store", "10.0.0.1", False),
        ("s3://b/f", "10.0.0.2", False),
        (None, "10.0.0.2", False),
    ],
)
def test_only_paths_on_other_hosts_are_looked_at(storage: str | None, host: str, needed: bool) -> None:
    assert is_needed(storage, ["10.0.0.1:1", f"{host}:2"], 1) is needed
    assert not is_needed(storage, ["10.0.0.1:1", f"{host}:2"], 0)


def test_the_verdict_names_who_sees_it_and_who_does_not() -> None:
    witnesses = Witnesses()
    assert not witnesses.said(2, Seen("job-2", True, ""))
    assert witnesses.said(1, Seen("job-1", False, "an emptyDir volume, which every pod has for itself"))
    assert not witnesses.said(3, Seen("job-3", False, "an emptyDir volume, which every pod has for itself"))
    text = witnesses.verdict("/checkpoints", "job-0")
    assert (
        "seen by job-0, job-2 and not by job-1, job-3, where it is an emptyDir volume, which every pod has for itself."
        in text
    )


TABLE = """
22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/x
30 22 8:1 /var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/ckpt /empty rw - ext4 /dev/sda1 rw
31 22 8:1 /data/team\\040a /host rw - ext4 /dev/sda1 rw
32 22 0:50 / /nfs rw - nfs4 server:/export rw
33 22 8:17 /var/lib/kubelet/pods/u/volumes/kubernetes.io~local-volume/pv /local rw - xfs /dev/sdb1 rw
34 32 0:51 / /nfs/inner rw - tmpfs tmpfs rw
not a line
"""


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/empty/default/job", "an emptyDir volume"),
        ("/host", "a disk of this node: folder /data/team a of /dev/sda1 (ext4), as by hostPath"),
        ("/nfs/job", "another nfs4 file system (server:/export)"),
        ("/local/x", "a local PersistentVolume"),
        ("/nfs/inner/x", "in this machine's memory"),
        ("/hosted", "no volume at all, but the container's own file system"),
    ],
)
def test_what_lies_under_a_path_in_words(path: str, says: str) -> None:
    assert says in mounts.describe(path, TABLE)
