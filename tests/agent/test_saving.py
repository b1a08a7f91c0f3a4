"""Checkpoints through two real agents: acknowledged ones survive, are committed, adopted, fetched from peers, and
verified.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from support.small_disk import small_disk
from trainjob_api import contract

pytestmark = pytest.mark.slow

HEAD = """
import json, os, pathlib, signal, sys, tempfile, time, trainjob
c = trainjob.get_context()
def save(i, name=None, data=b"x", **options):
    with tempfile.TemporaryDirectory() as d:
        path = pathlib.Path(d, name or f"part-{c.rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        trainjob.report({"loss": 1 / i}, checkpoint=trainjob.Checkpoint.from_directory(d), step=i, **options)
found = trainjob.get_checkpoint()
if found:
    with found.as_directory() as d:
        names = sorted(str(p.relative_to(d)) for p in pathlib.Path(d).rglob("*") if p.is_file() and ".trainjob" not in str(p))
        print("resumed", json.dumps({"id": found.id, "step": found.step, "files": names, "bytes": sum(len(pathlib.Path(d, n).read_bytes()) for n in names)}), flush=True)
"""


def resumed(rig: Rig, slot: int) -> dict[str, Any] | None:
    """What a rank of this agent resumed from."""
    lines = [line.split("resumed ", 1)[1] for line in rig.text(slot).splitlines() if "| resumed {" in line]
    return json.loads(lines[-1]) if lines else None


def manifest(store: Path, id_: str) -> Path:
    return store / "checkpoints" / id_ / ".trainjob" / "manifest.json"


def all_killed(rig: Rig) -> None:
    """Every rank, without a word to the agents."""
    for number in rig.ranks():
        rig.kill_rank(number)
    rig.wait(lambda: rig.ended(*rig.ranks()), "killed ranks are seen")


@pytest.mark.parametrize("stored", [True, False])
def test_an_acknowledged_checkpoint_survives_its_ranks_at_any_moment(tmp_path: Path, stored: bool) -> None:
    script = HEAD + "if not found:\n    save(1)\n    save(2)\n    os.kill(os.getpid(), 9)\n"
    with Rig(tmp_path, script=script, storage=tmp_path / "store" if stored else None) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "both killed themselves")
        rig.run(2)
        rig.wait(rig.completed, "completed")
        for slot in (0, 1):
            assert resumed(rig, slot) == {"id": "1-1-2", "step": 2, "files": ["part-0", "part-1"], "bytes": 2}
        assert rig.report(0)["resumed_from"] == "1-1-2"
        assert rig.report(0)["progress"]["position"] == 2
        if stored:
            assert manifest(tmp_path / "store", "1-1-2").exists(), "the new attempt committed what it resumed from"
            assert (tmp_path / "store/runs/1.end.json").exists()


def test_a_staged_checkpoint_that_could_not_be_stored_is_adopted_when_storage_is_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = (
        HEAD + "if not found:\n    while not os.path.exists('go'): time.sleep(0.02)\n    save(1)\n    "
        "print('acknowledged', flush=True)\n    time.sleep(600)\ntime.sleep(600)\n"
    )
    with Rig(tmp_path, script=script, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1), "running")
        # Nothing can be stored: a file is in the way of the folder (root would write through mere permissions).
        shutil.rmtree(store / "checkpoints", ignore_errors=True)
        (store / "checkpoints").write_text("in the way")
        (rig.work / "go").touch()
        rig.wait_text(0, "acknowledged")
        rig.wait_text(1, "acknowledged")
        rig.wait(lambda: rig.report(0)["checkpoint_trouble"], "the trouble is told")
        assert "1-1-1" in rig.report(0)["checkpoint_trouble"] and rig.report(0)["uploads"] == 1
        all_killed(rig)
        (store / "checkpoints").unlink()
        rig.run(2)
        rig.wait(lambda: manifest(store, "1-1-1").exists(), "committed by attempt 2")
        rig.wait(lambda: resumed(rig, 0) and resumed(rig, 1), "resumed")
        assert resumed(rig, 1) == {"id": "1-1-1", "step": 1, "files": ["part-0", "part-1"], "bytes": 2}
        rig.wait(lambda: rig.report(0)["uploads"] == 0 and rig.report(1)["uploads"] == 0)
        rig.wait(lambda: rig.report(0)["checkpoint_trouble"] is None, "the trouble is over")


def test_an_upload_goes_on_in_hold(tmp_path: Path) -> None:
    script = HEAD + "save(1, data=os.urandom(40_000_000))\nprint('acknowledged', flush=True)\ntime.sleep(600)\n"
    with Rig(tmp_path, script=script, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait_text(0, "acknowledged")
        rig.wait_text(1, "acknowledged")
        rig.hold()
        rig.wait(lambda: manifest(tmp_path / "store", "1-1-1").exists(), "committed although no rank is left")
        rig.wait(lambda: rig.report(0)["uploads"] == 0 and rig.report(0)["quiet"])


def test_files_of_a_staged_checkpoint_come_from_the_peer_that_has_them(tmp_path: Path) -> None:
    script = (
        HEAD + "if not found:\n    save(1, name=f'deep/er/part {c.rank}', data=os.urandom(3_000_000))\n    "
        "os.kill(os.getpid(), 9)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "killed")
        rig.run(2)
        rig.wait(rig.completed, "completed")
        for slot in (0, 1):
            assert resumed(rig, slot) == {
                "id": "1-1-1",
                "step": 1,
                "files": ["deep/er/part 0", "deep/er/part 1"],
                "bytes": 6_000_000,
            }
        rig.run(3)
        rig.wait(lambda: rig.report(0)["attempt"] == 3)
        # It goes beside the next attempt, which does not wait for it.
        rig.wait(
            lambda: not (rig.work_dir(0) / "restore" / "2").exists(), "what was brought for an attempt goes with it"
        )


def test_a_new_pod_restores_from_storage(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = HEAD + "if not found:\n    save(1)\n    time.sleep(600)\n"
    with Rig(tmp_path, script=script, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: manifest(store, "1-1-1").exists(), "committed")
        rig.agents[1].process.kill()
        rig.exit_code(1)
        shutil.rmtree(rig.work_dir(1))
        rig.coordinator.forget(1)
        rig.start(1)
        rig.run(2)
        rig.wait(rig.completed, "completed")
        for slot in (0, 1):
            assert resumed(rig, slot) == {"id": "1-1-1", "step": 1, "files": ["part-0", "part-1"], "bytes": 2}


def test_a_damaged_checkpoint_ends_the_attempt_and_the_one_before_is_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = HEAD + "if not found:\n    save(1)\n    save(2)\n    time.sleep(600)\ntime.sleep(600)\n"
    with Rig(tmp_path, script=script, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: manifest(store, "1-1-2").exists(), "committed")
        for slot in (0, 1):
            rig.agents[slot].process.kill()
            rig.exit_code(slot)
            shutil.rmtree(rig.work_dir(slot))
            rig.coordinator.forget(slot)
        (store / "checkpoints/1-1-2/part-1").write_bytes(b"y")
        for slot in (0, 1):
            rig.start(slot)
        rig.run(2)
        rig.wait(lambda: rig.ended(0, 1, attempt=2), "both ended")
        assert {r["kind"] for r in rig.ranks(2).values()} == {contract.END_DAMAGED}
        assert "1-1-2" in rig.rank(0)["error"]["message"]
        assert (store / "checkpoints/1-1-2/.trainjob/damaged.json").exists()
        rig.run(3)
        rig.wait(lambda: resumed(rig, 0) and resumed(rig, 1), "resumed from the one before")
        assert (resumed(rig, 0) or {})["id"] == "1-1-1"


def test_a_storage_that_cannot_be_used_is_a_worded_end_not_a_hang(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a folder")
    with Rig(tmp_path, script=HEAD, storage=tmp_path / "store" / "digits") as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "both told")
        for rank in rig.ranks().values():
            assert rank["kind"] == contract.END_STORAGE
            assert str(tmp_path / "store") in rank["error"]["message"]
        assert rig.report(0)["quiet"]


def test_a_read_only_storage_is_a_worded_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(store)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting needs rights that this machine does not give")
    try:
        with Rig(tmp_path, script=HEAD, storage=store / "digits", agents=1) as rig:
            rig.run(1)
            rig.wait(lambda: rig.ended(0), "told")
            assert rig.rank(0)["kind"] == contract.END_STORAGE
            assert "read-only" in rig.rank(0)["error"]["message"]
    finally:
        subprocess.run(["umount", str(store)], check=True)


def test_a_directory_that_cannot_be_staged_fails_the_report_on_all_ranks(tmp_path: Path) -> None:
    script = HEAD + (
        "folder = tempfile.mkdtemp()\nos.mkfifo(folder + '/a pipe')\n"
        "try:\n    trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder) if c.rank == 1 else "
        "None)\n"
        "except Exception as error:\n    print('refused', type(error).__name__, error, flush=True)\nsave(2)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(rig.completed, "the next report works")
        for slot in (0, 1):
            rig.wait_text(slot, "refused CheckpointError Worker 1 cannot stage the checkpoint")
            rig.wait_text(slot, "a pipe")


def test_sync_is_durable_when_it_returns(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = (
        HEAD + "save(1, checkpoint_upload_mode='SYNC')\nassert "
        f"os.path.exists({str(manifest(store, '1-1-1'))!r})\nprint('durable', flush=True)\n"
    )
    with Rig(tmp_path, script=script, storage=store) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        for slot in (0, 1):
            rig.wait_text(slot, "durable")


def test_ranks_of_one_agent_give_one_tree_and_staging_stays_small(tmp_path: Path) -> None:
    script = HEAD + "for i in range(1, 6): save(i, name='same', data=b'%d' % i)\n"
    with Rig(tmp_path, script=script, processes=2, storage=tmp_path / "store", spec={"keep": 1}) as rig:
        rig.run(1)
        rig.wait(lambda: rig.report(0)["completed"], "the last word of rank 0's agent")
        assert rig.report(0)["checkpoint_count"] == 1
        assert rig.report(0)["latest"]["id"] == "1-1-5"
        rig.wait(
            lambda: (
                [p.name for p in (rig.work_dir(0) / "staging").iterdir() if not p.name.startswith(".")] == ["1-1-5"]
            ),
            "only the newest is staged",
        )
        assert (tmp_path / "store/checkpoints/1-1-5/same").read_bytes() == b"5"
        rows = [json.loads(line) for line in (tmp_path / "store/history/1-1.jsonl").read_text().splitlines()]
        assert [(r["position"], r["step"], r["checkpoint"]) for r in rows if r["kind"] == "report"] == [
            (i, i, f"1-1-{i}") for i in range(1, 6)
        ]


def test_a_completed_run_is_found_complete_by_fresh_agents(tmp_path: Path) -> None:
    with Rig(tmp_path / "one", script="import trainjob\ntrainjob.barrier()\n", storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
    with Rig(tmp_path / "two", script="raise SystemExit(1)\n", storage=tmp_path / "store") as rig:
        rig.run(2)
        rig.wait(lambda: all(r["completed"] for r in rig.coordinator.reports.values()), "both say so")
        assert rig.ranks() == {}


def test_a_staged_file_that_changed_is_noticed_and_the_one_before_is_taken(tmp_path: Path) -> None:
    store = tmp_path / "store"
    script = HEAD + "if not found:\n    save(1)\n    save(2)\n    time.sleep(600)\ntime.sleep(600)\n"
    with Rig(tmp_path, script=script, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: manifest(store, "1-1-2").exists(), "both are committed")
        rig.wait(lambda: rig.report(0)["uploads"] == 0 and rig.report(1)["uploads"] == 0)
        all_killed(rig)
        (rig.work_dir(1) / "staging/1-1-2/files/part-1").write_bytes(b"longer than it was")
        (store / "checkpoints/1-1-2/part-1").write_bytes(b"longer than it was")
        rig.run(2)
        rig.wait(lambda: resumed(rig, 0) and resumed(rig, 1), "resumed from the one before")
        assert resumed(rig, 1) == {"id": "1-1-1", "step": 1, "files": ["part-0", "part-1"], "bytes": 2}


def test_checkpoints_in_quick_succession_do_not_flood_the_coordinator(tmp_path: Path) -> None:
    script = HEAD + "for i in range(1, 41):\n    save(i)\n    time.sleep(0.02)\n"
    with Rig(tmp_path, script=script, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(lambda: rig.report(0)["checkpoint_count"] == 40, "all are committed")
        training = [
            r for r in rig.coordinator.log if any(rank["state"] == contract.RANK_RUNNING for rank in r["ranks"])
        ]
        for slot in (0, 1):
            clocks = [r["clock"] for r in training if r["slot"] == slot]
            # Progress is posted once a second and superseded polls are posted anew; 80 small changes are not each worth
            # a post.
            assert len(clocks) <= 8 + 3 * (clocks[-1] - clocks[0]), (slot, len(clocks))


def test_what_killed_ranks_left_in_tmpdir_goes_before_the_next_attempt(tmp_path: Path) -> None:
    script = "import os, pathlib, tempfile, time, trainjob\nc = trainjob.get_context()\n" + (
        "if c.get_attempt() == 1:\n    tempfile.mkdtemp(prefix='trainjob-shards-')\n    "
        "tempfile.mkdtemp(prefix='mine-')\n    os.kill(os.getpid(), 9)\n"
        "while any(n.startswith('trainjob-') for n in os.listdir(tempfile.gettempdir())): time.sleep(0.02)\n"
        "print('left', [n[:5] for n in os.listdir(tempfile.gettempdir())], flush=True)\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "killed")
        rig.run(2)
        rig.wait_text(0, "left []")


def test_a_checkpoint_that_finds_no_room_to_be_staged_is_the_cause_with_the_way_out(tmp_path: Path) -> None:
    # Two folders of its own beside the work volume: the first is staged, for the second there is no room.
    script = HEAD + 'tempfile.tempdir = os.getcwd()\nsave(1, data=b"x" * 9000)\nsave(2, data=b"x" * 3_000_000)\n'
    with small_disk(tmp_path / "pod-0"), Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "told")
        rank = rig.rank(0)
        assert rank["kind"] == contract.END_FULL, rank["error"]["message"]
        assert rank["error"]["type"] == "trainjob.session.errors.StagingFullError"
        assert "spec.checkpoint.staging.sizeLimit" in rank["error"]["message"]


def test_a_script_that_fills_the_staging_volume_through_tmpdir_hears_whose_volume_it_is(tmp_path: Path) -> None:
    script = HEAD + 'save(1, data=b"x" * 3_000_000)\n'
    with small_disk(tmp_path / "pod-0"), Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "told")
        message = rig.rank(0)["error"]["message"]
        assert "No space left on device" in message and "spec.checkpoint.staging.sizeLimit" in message
