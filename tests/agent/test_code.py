"""Code that `tj submit` left in the job's storage: every agent brings it before its ranks start, and what a function
returned goes back the same way.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.warm_parents import PATIENT
from trainjob.checkpoint.storage_child import code
from trainjob.checkpoint.stores.path_store import PathStore
from trainjob.launch.cluster import archive
from trainjob_api import contract

pytestmark = pytest.mark.slow

TRAIN = "import helper, os, sys; print('helped by', helper.NAME, 'in', os.getcwd(), contract_env, flush=True)".replace(
    "contract_env", f"os.environ.get({contract.ENV_CODE!r})"
)


def packed(folder: Path) -> bytes:
    """train.py and its helper."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text("NAME = 'the helper'")
    return archive.pack(archive.collect(str(folder)))


def rig(folder: Path, key: str) -> Rig:
    return Rig(folder, storage=folder / "storage", env={contract.ENV_CODE: key})


def test_every_worker_unpacks_it_before_its_ranks_start(tmp_path: Path) -> None:
    data, store = packed(tmp_path / "here"), PathStore(str(tmp_path / "storage"))
    assert code.leave(store, data)
    assert not code.leave(store, data), "it is there already"
    with rig(tmp_path, code.key_of(data)) as job:
        job.run(1)
        job.wait(lambda: job.ended(0, 1), "both ranks have ended")
        assert [job.rank(number)["kind"] for number in (0, 1)] == [contract.END_OK] * 2, job.everything()
        for slot in (0, 1):
            job.wait_text(slot, f"r0{slot} | helped by the helper in {job.work} None")


@pytest.mark.parametrize(("change", "says"), [("gone", "is gone from"), ("damaged", "is not what was submitted")])
def test_an_attempt_without_it_ends_with_what_to_do(tmp_path: Path, change: str, says: str) -> None:
    data, store = packed(tmp_path / "here"), PathStore(str(tmp_path / "storage"))
    code.leave(store, data)
    path = tmp_path / "storage" / code.key_of(data)
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] + b"!")
    with rig(tmp_path, code.key_of(data)) as job:
        job.run(1)
        job.wait(lambda: job.ended(0, 1), "the attempt has ended")
        error = job.rank(0)["error"]
        assert job.rank(0)["kind"] == contract.END_STORAGE
        assert says in error["message"] and "submit the job again" in error["message"]
        # It is there again: the next attempt finds it.
        path.write_bytes(data)
        job.run(2)
        job.wait(lambda: job.ended(0, 1, attempt=2), "the second has ended")
        assert job.rank(0)["kind"] == contract.END_OK, job.everything()


FORKED = """
import os, sys
how = "a fork" if "torch" in sys.modules else "no fork"
import torch.distributed.rendezvous
beside = "agent" in sys.modules["torch.distributed.rendezvous"]._create_c10d_store.__qualname__
print(how, "with a store beside it" if beside else "that serves", flush=True)
"""


def test_its_ranks_are_forks_from_the_first_attempt_on(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "train.py").write_text(FORKED)
    data = archive.pack(archive.collect(str(tmp_path / "here")))
    code.leave(PathStore(str(tmp_path / "storage")), data)
    spec, env = {"prefork": contract.PREFORK_AUTO}, {contract.ENV_CODE: code.key_of(data)}
    with Rig(tmp_path, storage=tmp_path / "storage", env=env, spec=spec, entry=PATIENT) as job:
        job.run(1)
        for slot in (0, 1):
            job.wait_text(slot, f"r{slot:02d} | a fork with a store beside it")


RETURN = """
import os
if os.environ["RANK"] == "0":
    with open(os.environ["TRAINJOB_RETURN_FILE"], "wb") as file:
        file.write(b"pickled")
"""


def test_what_rank_0_leaves_is_stored_before_the_end_record(tmp_path: Path) -> None:
    with Rig(tmp_path, script=RETURN, storage=tmp_path / "storage") as job:
        job.run(1)
        job.wait(job.completed, "the run is complete")
    assert sorted(os.listdir(tmp_path / "storage" / "runs")) == [
        "1.attempt-1.json",
        "1.end.json",
        "1.json",
        "1.returned.pkl",
    ]
    assert (tmp_path / "storage" / "runs" / "1.returned.pkl").read_bytes() == b"pickled"
