"""A rank that the kernel killed for its memory is told as that: counters of cgroup v1 and v2, in made-up trees."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.agent_rig import Rig
from support.storage_children import child_of as storage_child_of
from support.tuned_agent import entry
from support.warm_parents import children_of, parent_of, parents_of
from trainjob.agent.processes import memory
from trainjob_api import contract

V1 = "11:cpu,cpuacct:/kubepods/pod1/c1\n5:memory:/kubepods/pod1/c1\n0::/kubepods/pod1/c1\n"
V2 = "0::/kubepods.slice/c1.scope\n"
GIB = 1 << 30


class Tree:
    """proc and sys of a container."""

    def __init__(self, root: Path, version: int, limit: str, below: str = "") -> None:
        proc, folder = root / "proc/self", root / "sys/fs/cgroup" / ("memory" if version == 1 else "") / below
        proc.mkdir(parents=True)
        folder.mkdir(parents=True)
        (proc / "cgroup").write_text(V1 if version == 1 else V2)
        self._limit = folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        self.limited(limit)
        self._counter = folder / ("memory.oom_control" if version == 1 else "memory.events")
        self._version = version
        self.count(0)

    def limited(self, limit: str) -> None:
        self._limit.write_text(f"{limit}\n")

    def count(self, kills: int) -> None:
        """So many were killed so far."""
        before = "oom_kill_disable 0\nunder_oom 0\n" if self._version == 1 else "low 0\nhigh 0\nmax 7\noom 3\n"
        self._counter.write_text(f"{before}oom_kill {kills}\n")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("version", "none", "used", "cached"),
    [
        (1, str((1 << 63) - 4096), "memory.usage_in_bytes", "total_inactive_file"),
        (2, "max", "memory.current", "inactive_file"),
    ],
)
def test_what_is_left_is_the_smaller_of_the_groups_and_the_machines(
    root: Path, version: int, none: str, used: str, cached: str
) -> None:
    assert memory.room() is None
    tree = Tree(root, version, str(3 * GIB))
    assert memory.room() == 3 * GIB
    tree.limited(none)
    assert memory.room() is None, "no limit, and the machine says nothing"
    tree.limited(str(3 * GIB))
    folder = root / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    (folder / used).write_text(f"{2 * GIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{cached} {GIB}\n")
    assert memory.room() == 2 * GIB
    (root / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    1024 kB\n")
    assert memory.room() == 1 << 20
    tree.limited(none)
    assert memory.room() == 1 << 20


@pytest.mark.parametrize(
    ("version", "below"), [(1, ""), (1, "kubepods/pod1/c1"), (2, ""), (2, "kubepods.slice/c1.scope")]
)
def test_each_kill_explains_one_end(root: Path, version: int, below: str) -> None:
    tree = Tree(root, version, str(3 * GIB // 2), below)
    tree.count(4)
    kills = memory.OomKills()
    assert kills.claim() is None, "what was killed before is none of ours"
    tree.count(6)
    said = kills.claim()
    assert said is not None and "its memory limit of 1.5 GiB" in said and "resources.limits.memory" in said
    assert kills.claim() == said and kills.claim() is None


@pytest.mark.parametrize(("version", "limit"), [(1, "9223372036854771712"), (2, "max")])
def test_without_a_limit_it_is_the_node(root: Path, version: int, limit: str) -> None:
    tree = Tree(root, version, limit)
    kills = memory.OomKills()
    tree.count(1)
    assert "its node, or its pod, had no memory left" in (kills.claim() or "")


@pytest.mark.parametrize("content", [None, "", "oom_kill\n", "oom_kill x\n", "oom 3\n", "\xff\xfe"])
def test_a_group_that_tells_nothing_explains_nothing(root: Path, content: str | None) -> None:
    if content is not None:
        Tree(root, 2, "max")
        (root / "sys/fs/cgroup/memory.events").write_text(content)
    assert memory.OomKills().claim() is None


@pytest.mark.parametrize("version", [1, 2])
def test_v1s_controller_counts_where_both_are_mounted(root: Path, version: int) -> None:
    if version == 1:
        tree = Tree(root, 1, "max")
        (root / "sys/fs/cgroup/unified").mkdir()
    else:
        tree = Tree(root, 2, "max")
        (root / "proc/self/cgroup").write_text("1:name=systemd:/\n" + V2)
    kills = memory.OomKills()
    tree.count(1)
    assert kills.claim() is not None


LOADER = """
import os, signal, time, torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, at):
        print("up", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    pass
"""
POOL = """
import concurrent.futures, os, signal, subprocess, sys, time
def die():
    print("up", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "pool":
    concurrent.futures.ProcessPoolExecutor(1).submit(die).result()
else:
    print("up", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    subprocess.run(["sh", "-c", "kill -9 $$"], check=True)
"""


@pytest.mark.parametrize("how", ["loader", "pool", "subprocess"])
@pytest.mark.parametrize("counted", [True, False], ids=["for its memory", "by somebody"])
def test_a_rank_whose_loader_the_kernel_killed_says_so(tmp_path: Path, how: str, counted: bool) -> None:
    """The counter tells the kernel's kill from another's, which is told where torch says so; elsewhere it stays the
    exception that it is.
    """
    tree = Tree(tmp_path / "root", 2, str(2 * GIB))
    tuned = entry(processes__memory__ROOT=str(tmp_path / "root"))
    command = [sys.executable, "train.py", how]
    with Rig(tmp_path, script=LOADER if how == "loader" else POOL, agents=1, command=command, entry=tuned) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        tree.count(int(counted))
        (rig.work / "go").touch()
        rig.wait(lambda: rig.ended(0), "the rank has ended")
        rank = rig.rank(0)
        if not counted and how == "loader":
            assert (rank["kind"], rank["exit_code"], rank["error"]["type"]) == (contract.END_SIGNAL, 1, "DataLoader")
            assert "was killed by SIGKILL (by somebody, or by the kernel" in rank["error"]["message"]
            assert "Traceback" in rank["error"]["traceback"]
            return
        if not counted:
            assert rank["kind"] == contract.END_EXCEPTION
            return
        assert (rank["kind"], rank["exit_code"], rank["error"]["type"]) == (contract.END_OOM, 1, "OutOfMemory")
        assert "its memory limit of 2 GiB" in rank["error"]["message"] and "fewer loader" in rank["error"]["message"]
        assert "What it raised for that" in rank["error"]["message"]
        assert "Traceback" in rank["error"]["traceback"]


FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(3600)\n"


@pytest.mark.parametrize("version", [1, 2])
def test_a_rank_that_the_kernel_killed_says_so(tmp_path: Path, version: int) -> None:
    tree = Tree(tmp_path / "root", version, str(2 * GIB))
    tuned = entry(processes__memory__ROOT=str(tmp_path / "root"))
    with Rig(tmp_path, script=FOREVER, agents=1, processes=2, entry=tuned) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0, 1))
        tree.count(1)
        rig.kill_rank(1)
        rig.wait(lambda: rig.ended(1), "the rank has ended")
        rank = rig.rank(1)
        assert (rank["kind"], rank["signal"]) == (contract.END_OOM, signal.SIGKILL)
        assert "its memory limit of 2 GiB" in rank["error"]["message"]
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0), "the other one too")
        assert rig.rank(0)["kind"] == contract.END_SIGNAL, "the kernel killed one"


@pytest.mark.parametrize("first", ["warm parent", "storage child"])
def test_a_kill_that_explains_another_childs_end_explains_no_ranks(tmp_path: Path, first: str) -> None:
    tree = Tree(tmp_path / "root", 2, str(2 * GIB))
    tuned = entry(processes__memory__ROOT=str(tmp_path / "root"))
    spec = {"prefork": contract.PREFORK_ALWAYS, "preload": ["decimal"]}
    script = "import time, trainjob\ntrainjob.barrier()\nprint('up', flush=True)\ntime.sleep(3600)\n"
    with Rig(tmp_path, script=script, agents=1, storage=tmp_path / "store", spec=spec, entry=tuned) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        pid = parent_of(rig) if first == "warm parent" else storage_child_of(rig, 0)
        tree.count(1)
        os.kill(pid, signal.SIGKILL)
        rig.wait(lambda: not os.path.exists(f"/proc/{pid}"), "the agent has collected it")
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0), "the rank has ended")
        assert rig.rank(0)["kind"] == contract.END_SIGNAL


OUT_TWICE = """
import os, time, trainjob
attempt, score = os.environ["TRAINJOB_ATTEMPT"], open("/proc/self/oom_score_adj").read().strip()
trainjob.barrier()
print("up in attempt", attempt, "with score", score, flush=True)
time.sleep(3600)
"""


def test_a_job_that_was_out_of_memory_has_no_warm_parent_any_more(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", 2, str(2 * GIB))
    (tmp_path / "root/sys/fs/cgroup/memory.oom.group").write_text("0\n")
    tuned = entry(processes__memory__ROOT=str(tmp_path / "root"))
    own = Path("/proc/self/oom_score_adj").read_text().strip()
    with Rig(tmp_path, script=OUT_TWICE, agents=1, spec={"prefork": contract.PREFORK_AUTO}, entry=tuned) as rig:
        rig.run(1)
        rig.wait_text(0, f"up in attempt 1 with score {own}")
        rig.wait(lambda: len(children_of(rig)) == 2, "the parent, and a fork that waits")
        assert {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in children_of(rig)} == {"1000"}
        tree.count(1)
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0), "the rank has ended")
        assert rig.rank(0)["kind"] == contract.END_OOM
        rig.wait(lambda: not parents_of(rig), "nothing that is forked from takes memory")
        rig.run(2)
        rig.wait_text(0, "up in attempt 2")
        rig.wait(lambda: "was out of memory" in ((rig.report(0).get("forks") or {}).get("why") or ""), "it says why")
        assert not parents_of(rig)


def test_agents_are_told_of_it(tmp_path: Path) -> None:
    with Rig(tmp_path, script=OUT_TWICE, agents=1, spec={"prefork": contract.PREFORK_AUTO}) as rig:
        rig.run(3, spare_memory=True)
        rig.wait_text(0, "up in attempt 3")
        rig.wait(lambda: "was out of memory" in ((rig.report(0).get("forks") or {}).get("why") or ""), "it says why")
        assert not parents_of(rig)


def test_where_the_kernel_ends_all_nobody_goes_first(root: Path) -> None:
    assert not memory.ends_one_alone()
    Tree(root, 2, str(GIB))
    group = root / "sys/fs/cgroup/memory.oom.group"
    for text, alone in (("0\n", True), ("1\n", False)):
        group.write_text(text)
        assert memory.ends_one_alone() is alone
    group.unlink()
    assert not memory.ends_one_alone()


def test_with_the_first_version_it_always_ends_one(root: Path) -> None:
    Tree(root, 1, str(GIB))
    assert memory.ends_one_alone()


def test_behind_a_shell_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", 2, str(2 * GIB))
    tuned = entry(processes__memory__ROOT=str(tmp_path / "root"))
    command = ["bash", "-c", "python3 -c 'import os; os.kill(os.getpid(), 9)'; exit $?"]
    with Rig(
        tmp_path, agents=1, entry=tuned, command=["bash", "-c", f"while [ ! -e go ]; do sleep 0.02; done; {command[2]}"]
    ) as rig:
        rig.run(1)
        rig.wait(lambda: rig.rank(0).get("pid"))
        tree.count(1)
        (rig.work / "go").touch()
        rig.wait(lambda: rig.ended(0))
        assert (rig.rank(0)["kind"], rig.rank(0)["exit_code"]) == (contract.END_OOM, 137)
