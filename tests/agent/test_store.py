"""The store by which ranks find each other, served beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from cluster.ports import free_port, free_ports
from support.agent_rig import Rig
from support.warm_parents import PATIENT, parent_of, parents_of
from trainjob.agent.attempts import master_port
from trainjob.agent.warm.gate import Gate
from trainjob.agent.warm.stores import Stores
from trainjob_api import contract

TORCH = {"prefork": contract.PREFORK_ALWAYS, "preload": ["torch", "torch.distributed"]}
AUTO = {"prefork": contract.PREFORK_AUTO}
ENDS_FIRST = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
import trainjob
dist.init_process_group("gloo")
rank = dist.get_rank()
trainjob.barrier()
if rank == 0:
    sys.exit(0)
while os.getppid() and not os.path.exists("rank 0 is gone"):
    time.sleep(0.01)
# In words that nobody who looks for a server in this text finds.
port = int(os.environ["MASTER" + "_PORT"])
store = getattr(dist, "TCP" + "Store")(os.environ["MASTER_ADDR"], port, timeout=timedelta(seconds=60))
store.set("by", "rank 1")
print("the store knows", store.get("by").decode(), flush=True)
os._exit(0)
"""
AGAIN = """
import os, time
from datetime import timedelta
import torch, torch.distributed as dist
for number in range(12):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one.item() == 2
    dist.destroy_process_group()
rank = int(os.environ["RANK"])
own = "tcp://127.0.0.1:" + os.environ[f"OWN_PORT_{rank}"]
dist.init_process_group("gloo", init_method=own, rank=0, world_size=1)
print("rank", rank, "made thirteen groups", flush=True)
time.sleep(600)
"""
OF_ITS_OWN = """
import os
from datetime import timedelta
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d", rank=0, world_size=1, timeout=timedelta(seconds=60))
print("a child has a group of its own", flush=True)
"""
STARTS_ANOTHER = """
import importlib, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    importlib.import_module("sub" + "process").run([sys.executable, "child.py"])
time.sleep(600)
"""
"""As a library does it: the script's own text does not show it."""
LEAVES_ALL_TO_A_CHILD = """
import subprocess, sys
import torch
sys.exit(subprocess.run([sys.executable, "child.py"]).returncode)
"""
IN_THE_CHILD = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("a child is one of", int(one), flush=True)
dist.destroy_process_group()
"""
SERVES = {
    "a store": """
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0)
store.set(str(rank), "x")
store.wait([str(1 - rank)])
""",
    "an HTTP server": """
import http.server, time, urllib.request
url = f"http://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}/"
if rank == 0:
    server = http.server.HTTPServer(("", int(os.environ["MASTER_PORT"])), http.server.SimpleHTTPRequestHandler)
    server.handle_request()
for _ in range(600 * rank):
    try:
        urllib.request.urlopen(url)
        break
    except OSError:
        time.sleep(0.1)
""",
}
"""On the ranks' port."""
BECOMES_ANOTHER = """
import os, sys
how = "a fork" if "torch" in sys.modules else "no fork"
import torch, torch.distributed as dist
if sys.argv[1:] != ["last"]:
    if sys.argv[1:] == ["with a group"]:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
    print("begun as", how, flush=True)
    os.execv(sys.executable, [sys.executable, sys.argv[0], "last"])
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("became one of", int(one), flush=True)
dist.destroy_process_group()
"""
ONE_GROUP = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
print("attempt", os.environ["TRAINJOB_ATTEMPT"], "has a group of", dist.get_world_size(), flush=True)
time.sleep(600)
"""


def own_ports() -> dict[str, str]:
    """For the groups that ranks have for themselves."""
    return {f"OWN_PORT_{rank}": str(free_port()) for rank in (0, 1)}


@pytest.mark.slow
def test_rank_0_may_end_before_the_others(tmp_path: Path) -> None:
    with Rig(tmp_path, script=ENDS_FIRST, agents=1, processes=2, spec=TORCH, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, attempt=1))
        (rig.work / "rank 0 is gone").touch()
        rig.wait_text(0, "the store knows rank 1")


@pytest.mark.slow
@pytest.mark.parametrize("preload", [["torch", "torch.distributed"], ["torch"]])
def test_groups_may_be_made_one_after_the_other(tmp_path: Path, preload: list[str]) -> None:
    spec = {**TORCH, "preload": preload}
    with Rig(tmp_path, script=AGAIN, agents=1, processes=2, spec=spec, env=own_ports()) as rig:
        rig.run(1)
        for rank in (0, 1):
            rig.wait_text(0, f"rank {rank} made thirteen groups")


@pytest.mark.slow
def test_what_a_rank_starts_serves_a_store_of_its_own(tmp_path: Path) -> None:
    with Rig(tmp_path, script=STARTS_ANOTHER, agents=1, processes=2, spec=TORCH) as rig:
        (rig.work / "child.py").write_text(OF_ITS_OWN % free_port())
        rig.run(1)
        rig.wait_text(0, "a child has a group of its own")


@pytest.mark.slow
def test_a_wrapper_leaves_the_ranks_group_to_the_program_that_it_starts(tmp_path: Path) -> None:
    with Rig(tmp_path, script=LEAVES_ALL_TO_A_CHILD, agents=1, processes=2, spec=AUTO) as rig:
        (rig.work / "child.py").write_text(IN_THE_CHILD)
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        rig.wait(lambda: rig.text(0).count("a child is one of 2") == 2)


@pytest.mark.slow
@pytest.mark.parametrize("what", SERVES)
@pytest.mark.parametrize("wish", [contract.PREFORK_AUTO, contract.PREFORK_ALWAYS])
def test_a_script_may_serve_something_else_on_the_ranks_port(tmp_path: Path, what: str, wish: str) -> None:
    head = "import os, sys\nhow = 'a fork' if 'torch' in sys.modules else 'no fork'\nimport torch.distributed as dist\n"
    script = f"{head}rank = int(os.environ['RANK'])\n{SERVES[what]}\nprint('served,', how, flush=True)\n"
    env = {contract.ENV_VERBOSE: "1"}
    with Rig(tmp_path, script=script, agents=1, processes=2, spec={"prefork": wish}, env=env, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(lambda: rig.text(0).count("served, a fork") == 2)
        rig.wait_text(0, "and may serve something on that port")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["with a group"]], ids=["at once", "with a group"])
def test_a_script_that_becomes_another_program_makes_its_group_there(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "train.py", *arguments]
    with Rig(tmp_path, script=BECOMES_ANOTHER, command=command, agents=1, processes=2, spec=AUTO, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, 1), "ended")
        rig.wait(lambda: rig.text(0).count("became one of 2") == 2 == rig.text(0).count("begun as a fork"))


@pytest.mark.slow
def test_a_store_that_is_killed_ends_the_attempt_and_the_next_has_another(tmp_path: Path) -> None:
    with Rig(tmp_path, script=AGAIN, agents=1, processes=2, spec=TORCH, env=own_ports(), entry=PATIENT) as rig:
        rig.run(1)
        for rank in (0, 1):
            rig.wait_text(0, f"rank {rank} made thirteen groups")
        for pid in set(parents_of(rig)) - {parent_of(rig)}:
            with contextlib.suppress(ProcessLookupError):  # what stands between the parent and a fork for a moment
                os.kill(pid, signal.SIGKILL)  # the store; forks that wait for the next attempt are no loss
        rig.wait(lambda: rig.ended(0, 1, attempt=1))
        assert "store" in (rig.ranks(1)[0]["error"] or {})["message"], rig.ranks(1)
        rig.run(2)
        rig.wait(lambda: rig.text(0).count("made thirteen groups") == 4)


@pytest.mark.slow
def test_a_rank_that_is_alone_now_finds_its_port_free(tmp_path: Path) -> None:
    base = free_ports(2) - 1
    env = {contract.ENV_MASTER_PORT_ANY: "", "OMP_NUM_THREADS": "1"}
    spec = {**TORCH, "rendezvous_port": base}
    with Rig(tmp_path, script=ONE_GROUP, agents=1, processes=2, env=env, spec=spec, entry=PATIENT) as rig:
        rig.run(1)
        rig.wait(lambda: rig.text(0).count("attempt 1 has a group of 2") == 2)
        rig.wait(lambda: _listens(base + 2), "the store of the next attempt is there before anything breaks")
        rig.processes = 1
        rig.run(2)
        rig.wait_text(0, "attempt 2 has a group of 1")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_an_attempt_that_ended_early_makes_no_store_for_one_that_is_alone() -> None:
    asked: list[str] = []

    async def single(module: str) -> Gate | None:
        asked.append(module)
        return None

    async def scene() -> None:
        stores = Stores(single, asked.append)
        await stores.take(1, lambda number: master_port.computed(20000, number), alone=False)
        await stores.take(2, lambda number: master_port.computed(20000, number), alone=True)
        stores.make_next()
        await asyncio.sleep(0)
        stores.close()

    asyncio.run(scene())
    assert asked == ["torch"]
