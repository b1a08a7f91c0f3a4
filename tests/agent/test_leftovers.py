"""What ranks leave and what they start does not outlive their attempt; how they are told to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.agent_rig import Rig, processes_with
from support.patience import HANG_S
from trainjob.agent.attempts import forking
from trainjob_api import contract

pytestmark = pytest.mark.slow

HELPER = """
import os, subprocess, sys, time, trainjob
c = trainjob.get_context()
if c.get_attempt() == 1:
    # As a logger's service or a compile worker: a session of its own, and no parent soon.
    subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
    subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\ntime.sleep(600)"])
trainjob.barrier()
print("up", flush=True)
time.sleep(600)
"""


def test_helpers_with_sessions_of_their_own_end_with_the_attempt(tmp_path: Path) -> None:
    with Rig(tmp_path, script=HELPER, agents=1) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.wait(lambda: len(processes_with(f"{contract.ENV_ATTEMPT}=1")) >= 5, "helpers")
        rig.run(2)
        rig.wait(lambda: rig.running(0, attempt=2), "the next attempt")
        uid = rig.pod_uid(0)
        old = [pid for pid in processes_with(uid) if b"TRAINJOB_ATTEMPT=1\0" in read(pid, "environ")]
        assert old == []
        rig.wait_text(0, "outlived its ranks")


NAMELESS = """
import os, subprocess, sys, time, trainjob
WIPED = '''
import ctypes, os, sys, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)  # as setproctitle does, whose title goes where the environment was
open(sys.argv[1], "a").write(f"{os.getpid()} ")
time.sleep(600)
'''
c = trainjob.get_context()
if c.get_attempt() == 1:
    subprocess.Popen([sys.executable, "-c", WIPED, "pids"], start_new_session=True)
    subprocess.Popen(["/bin/sh", "-c", "echo $$ >> pids; while :; do sleep 600; done"], start_new_session=True, env={})
trainjob.barrier()
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("prefork", [contract.PREFORK_NEVER, contract.PREFORK_ALWAYS])
def test_helpers_that_nothing_names_end_with_the_attempt_and_nothing_of_the_agents_does(
    tmp_path: Path, prefork: str
) -> None:
    """They have no environment, or wrote over it."""
    store = tmp_path / "store"
    with Rig(tmp_path, script=NAMELESS, agents=1, storage=store, spec={"prefork": prefork}) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        file = rig.work / "pids"
        helpers = rig.wait(lambda: file.exists() and len(file.read_text().split()) == 2 and file.read_text().split())
        own = rig.wait(lambda: of_the_agent(rig), "its storage child")
        rig.run(2)
        rig.wait(lambda: rig.running(0, attempt=2), "the next attempt")
        rig.wait(lambda: not [pid for pid in helpers if lives(int(pid))], "the helpers are gone")
        rig.wait_text(0, "outlived its ranks")
        assert [pid for pid in own if not lives(pid)] == []


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def of_the_agent(rig: Rig) -> list[int]:
    """What it has started for itself: the storage child, a warm parent."""
    pid = rig.agents[0].process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    words = (b"storage_child", contract.WARM.encode() + b"\0")
    lines = {int(child): read(int(child), "cmdline") for child in children}
    return [child for child, line in lines.items() if any(word in line for word in words) and b"--\0" not in line]


def read(pid: int, name: str) -> bytes:
    """Of what is known of it; nothing: it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def test_where_tmpdir_has_a_long_path_there_is_still_room_for_the_name_of_a_socket(tmp_path: Path) -> None:
    """Loader workers hand tensors over through one: without it the loop waits for its first batch for ever."""
    script = (
        "import os, tempfile, time, multiprocessing.connection, trainjob\n"
        "multiprocessing.connection.Listener(family='AF_UNIX')\n"
        "open(os.path.join(tempfile.gettempdir(), 'data'), 'a')\ntrainjob.barrier()\n"
        "print('listens', flush=True)\ntime.sleep(600)\n"
    )
    tmp = tmp_path / ("long-" * 20)
    tmp.mkdir()
    with Rig(tmp_path, script=script, agents=1, env={contract.ENV_SHARED_TMP: str(tmp)}) as rig:
        for attempt in (1, 2):
            rig.run(attempt)
            rig.wait(lambda attempt=attempt: rig.text(0).count("listens") == attempt, "a socket")
            left = sorted(path.name[:5] for path in tmp.iterdir())
            assert left == ["data", "pymp-"]


def test_what_killed_ranks_leave_in_tmpdir_goes_with_their_attempt(tmp_path: Path) -> None:
    script = (
        "import os, tempfile, time, trainjob\nfolder = tempfile.mkdtemp(prefix='mine-')\n"
        "open(os.path.join(folder, 'model'), 'wb').write(bytes(100_000))\nopen(tempfile.gettempdir() + '/data', 'a')\n"
        "tempfile.NamedTemporaryFile(suffix='.pt', delete=False)\ntrainjob.barrier()\n"
        "print('attempt', trainjob.get_context().get_attempt(), 'saved', flush=True)\ntime.sleep(600)\n"
    )
    tmp = tmp_path / "shared"
    neighbour = tmp / "tmpabcdefgh_fedcba_"
    neighbour.mkdir(parents=True)
    with Rig(tmp_path, script=script, agents=1, env={contract.ENV_SHARED_TMP: str(tmp)}) as rig:

        def left() -> list[str]:
            return sorted(name[:3] for name in os.listdir(tmp))

        for attempt in (1, 2):
            rig.run(attempt)
            rig.wait_text(0, f"attempt {attempt} saved")
            assert left() == ["dat", "min", "tmp", "tmp"], "its own, and what has a name"
        rig.agents[0].process.kill()
        rig.agents[0].process.wait()
        rig.start(0)
        rig.wait(lambda: rig.report(0).get("boot") == 2, "again")
        rig.run(3)
        rig.wait_text(0, "attempt 3 saved")
        assert len(left()) == 4
        rig.exit(0)
        assert rig.exit_code(0) == 0 and sorted(os.listdir(tmp)) == ["data", neighbour.name]


@pytest.mark.parametrize("room", ["much", "little"])
def test_where_room_is_short_all_that_attempts_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    monkeypatch.setattr(forking, "ROOM_LEFT", 0.0 if room == "much" else 1.1)
    config = SimpleNamespace(work_dir=str(tmp_path), pod_uid="1a2b3c4d", shared_tmp=None)
    for name in ("data", "saved-by-mktemp.Xy12", "tmpabcdefgh_1a2b3c_"):
        (tmp_path / "tmp" / name).mkdir(parents=True)
    forking.make_folders(SimpleNamespace(config=config, socket_folder=str(tmp_path)))  # type: ignore[arg-type]
    kept = ["data", "saved-by-mktemp.Xy12"] if room == "much" else []
    assert sorted(os.listdir(tmp_path / "tmp")) == kept


GRACEFUL = """
import os, signal, subprocess, sys, time, trainjob
c = trainjob.get_context()
child = subprocess.Popen([sys.executable, "-c", "import time\\ntime.sleep(600)"])
def stop(*_):
    assert child.poll() is None, "the loader's worker died first"
    print("saved in time", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
trainjob.barrier()
print("up", flush=True)
while True:
    time.sleep(0.02)
    assert child.poll() is None, "the loader's worker died first"
"""


@pytest.mark.parametrize("how", ["plain", "behind a shell"])
def test_sigterm_reaches_the_rank_and_not_what_it_started(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "train.py"]
    if how != "plain":
        command = ["sh", "-c", f"{sys.executable} train.py; exit $?"]
    with Rig(tmp_path, script=GRACEFUL, agents=1, command=command) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.hold(grace_s=HANG_S)
        rig.wait_text(0, "saved in time")
        rig.wait(lambda: rig.report(0)["quiet"], "all gone")
        assert rig.rank(0)["kind"] == contract.END_STOPPED


def test_a_launcher_that_handles_sigterm_gets_it_alone(tmp_path: Path) -> None:
    script = (
        "import trainjob, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('got it', flush=True))\n"
        + ("trainjob.barrier()\nprint('up', flush=True)\nwhile True: time.sleep(0.02)\n")
    )
    trap = f"trap 'echo the launcher decides; kill -9 $child; exit 0' TERM; {sys.executable} train.py & child=$!; wait $child"
    with Rig(tmp_path, script=script, agents=1, command=["bash", "-c", trap]) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.hold(grace_s=HANG_S)
        rig.wait_text(0, "the launcher decides")
        rig.wait(lambda: rig.report(0)["quiet"], "all gone")
        assert "got it" not in rig.text(0)


SPAWNS = """
import concurrent.futures, multiprocessing, os, signal, sys, time, trainjob
from multiprocessing import shared_memory

def nothing():
    pass

if __name__ == "__main__":
    c = trainjob.get_context()
    lock = multiprocessing.get_context("spawn").Lock()
    shared = shared_memory.SharedMemory(create=True, size=4096)
    # Its idle worker is who keeps the tracker's pipe open when the rank itself is killed.
    executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    executor.submit(nothing).result()
    print("names", *(name.lstrip("/") for name in (shared._name, lock._semlock.name)), flush=True)
    trainjob.barrier()
    how = sys.argv[1]
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(3)
    time.sleep(600)
"""


def names_in(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if "| names " in line]
    shared, lock = line.split("| names ")[1].split()
    return [f"/dev/shm/{shared}", f"/dev/shm/sem.{lock}"]


@pytest.mark.parametrize("how", ["killed", "exits", "stopped", "stopped behind a session leader"])
def test_names_in_shared_memory_go_with_the_rank_however_it_ends(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "train.py", how]
    if "leader" in how:
        # As torchrun's workers: a group of its own, which the agent finds by its environment alone.
        command = ["sh", "-c", f"setsid {sys.executable} train.py stopped; exit"]
    with Rig(tmp_path, script=SPAWNS, agents=1, command=command) as rig:
        rig.run(1)
        rig.wait_text(0, "names ")
        rig.wait(lambda: names_in(rig.text(0)), "its names")
        names = names_in(rig.text(0))
        if how.startswith("stopped"):
            assert [name for name in names if not os.path.exists(name)] == []
            rig.hold()
        rig.wait(lambda: rig.ended(0), "ended")
        rig.wait(lambda: not [name for name in names if os.path.exists(name)], f"{names} are gone")
        rig.wait(lambda: processes_with(f"{contract.ENV_POD_UID}={rig.pod_uid(0)}") == [rig.agents[0].process.pid])


SHARES = """
import os, signal, sys, time, torch, torch.multiprocessing, trainjob
if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.zeros(1024)
    tensor.share_memory_()
    name = tensor.untyped_storage()._share_filename_cpu_()[1].decode()
    print("named", name.lstrip("/"), flush=True)
    trainjob.barrier()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_tensors_that_torch_shares_by_name_go_with_the_rank(tmp_path: Path, how: str) -> None:
    with Rig(tmp_path, script=SHARES, agents=1, command=[sys.executable, "train.py", how]) as rig:
        rig.run(1)
        rig.wait_text(0, "| named torch_")
        (line,) = [line for line in rig.text(0).splitlines() if "| named " in line]
        name = f"/dev/shm/{line.split()[-1]}"
        if how == "stopped":
            assert os.path.exists(name)
        else:
            rig.wait(lambda: rig.ended(0), "ended")
        rig.hold()
        rig.wait(lambda: rig.ended(0), "ended")
        rig.wait(lambda: not os.path.exists(name), f"{name} is gone")
        rig.wait(lambda: processes_with(f"{contract.ENV_POD_UID}={rig.pod_uid(0)}") == [rig.agents[0].process.pid])


def test_who_only_calls_itself_a_tracker_is_killed_all_the_same(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, trainjob\n"
        "code = 'import time; time.sleep(600) # from multiprocessing.resource_tracker import main'\n"
        "for own in (False, True):\n    subprocess.Popen([sys.executable, '-c', code], start_new_session=own)\n"
        "trainjob.barrier()\nos._exit(3)\n"
    )
    with Rig(tmp_path, script=script, agents=1) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        rig.hold()
        rig.wait(lambda: rig.report(0)["quiet"], "nothing left")
        uid = f"{contract.ENV_POD_UID}={rig.pod_uid(0)}"
        rig.wait(lambda: len(processes_with(uid)) == 1, "the agent alone")
