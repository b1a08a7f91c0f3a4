"""Every call of the operating system that an agent makes fails: once, and for ever. Whatever fails, the attempt or the
agent ends within bounds, with one clear cause and an exit code of ours; nothing is left; and once it works again, so
does the job.

TRAINJOB_TEST_EVERY_FAULT=1 records which calls an agent makes, and has each of them fail; else a selection.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from support import os_faults
from support.agent_rig import Rig, processes_with
from support.away import bring_back, take_away
from support.os_faults import FOR_EVER, RECORD, OsFaults
from support.patience import HANG_S
from trainjob_api import contract

pytestmark = pytest.mark.slow

SCRIPT = """
import os, pathlib, tempfile, trainjob
c = trainjob.get_context()
print(".\\r" * 100_000)  # more than a pipe holds: it ends only if it is read
found, start = trainjob.get_checkpoint(), 0
if found:
    with found.as_directory() as folder:
        start = int(pathlib.Path(folder, "step").read_text())
for i in range(start + 1, 4):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "step").write_text(str(i))
        trainjob.report({"i": i}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=i)
    if i == 2 and c.get_attempt() == 1:
        raise ValueError("once, so that there is something to restore")
"""
ATTEMPTS = 8
FOR_EVER_ATTEMPTS = 2
ENDED = (
    contract.END_EXCEPTION,
    contract.END_EXIT,
    contract.END_SIGNAL,
    contract.END_START,
    contract.END_STORAGE,
    contract.END_FULL,
)
OURS = {0, *range(80, 90)}
CHANCE = re.compile(r"\.\d{3,}|-\d{3,}|-[0-9a-f]{12}|(?<=/)tmp[a-z0-9_]{8}")
"""What of a name is another one each time: the number of a process, a temporary name."""
COORDINATOR = "/agent/control/"
ERRORS = {
    "open": ("ENOSPC", "EMFILE", "EROFS", "EIO"),
    "write": ("ENOSPC", "EIO"),
    "close": ("EDQUOT", "EIO"),
    "mkdir": ("ENOSPC", "EROFS"),
    "rename": ("ENOSPC", "EIO"),
    "replace": ("ENOSPC", "EIO"),
    "link": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC"),
    "listdir": ("EIO", "EMFILE"),
    "scandir": ("EIO", "EMFILE"),
    "chmod": ("EROFS",),
    "unlink": ("EROFS", "EIO"),
    "rmdir": ("EIO",),
    "fork": ("EAGAIN", "ENOMEM"),
    "pipe": ("EMFILE",),
    "socket": ("EMFILE",),
    "accept": ("EMFILE", "ECONNABORTED"),
    "stat": ("EIO", "ESTALE"),
    "fstat": ("EIO",),
    "read": ("EIO", "ESTALE"),
    "pread": ("EIO",),
    "preadv": ("EIO",),
    "pwrite": ("ENOSPC",),
    "ftruncate": ("ENOSPC",),
    "fchmod": ("EROFS",),
    "statvfs": ("EIO",),
    "symlink": ("ENOSPC", "EPERM"),
    "memfd_create": ("EMFILE",),
    "kill": ("EPERM",),
    "killpg": ("EPERM",),
    "epoll": ("ENOSPC",),
    "thread": ("EAGAIN",),
}
SOME = [
    OsFaults("open", "ENOSPC", "/pod-0/boot.new"),
    OsFaults("open", "ENOSPC", "/pod-0/boot.new", times=FOR_EVER),
    OsFaults("open", "ENOSPC", "/pod-0/attempt.new"),
    OsFaults("open", "ENOSPC", "/pod-0/attempt.new", times=FOR_EVER),
    OsFaults("mkdir", "EROFS", "/pod-0/staging", times=FOR_EVER),
    OsFaults("mkdir", "ENOSPC", "/pod-0/tmp"),
    OsFaults("open", "EMFILE", "/logs/rank-0.log"),
    OsFaults("pipe", "EMFILE", "processes/ranks.py"),
    OsFaults("fork", "EAGAIN", "processes/starter.py"),
    OsFaults("fork", "EAGAIN", "processes/starter.py", times=FOR_EVER),
    OsFaults("fork", "EAGAIN", "storing/storage.py"),
    OsFaults("fork", "EAGAIN", "storing/storage.py", times=FOR_EVER),
    OsFaults("close", "EDQUOT", "/logs/rank-0.log", times=10),
    OsFaults("epoll", "ENOSPC", "processes/console.py"),
    OsFaults("epoll", "ENOSPC", "processes/console.py:watch"),
    OsFaults("thread", "EAGAIN", "processes/console.py:_start"),
    OsFaults("thread", "EAGAIN", "processes/console.py:write"),
    OsFaults("socket", "EMFILE", "wire/peers.py", times=FOR_EVER),
    OsFaults("thread", "EAGAIN", "", after=1),
    OsFaults("unlink", "EIO", "/a2.sock"),
    OsFaults("accept", "EMFILE"),
    OsFaults("accept", "EMFILE", times=FOR_EVER),
]


def drive(folder: Path, plan: OsFaults, *, staging_goes: bool = False) -> str:
    """One job in which a call fails, as the operator would lead it; what its agents said. `staging_goes`: what the
    second attempt resumes from comes from storage.
    """
    failing = plan.times == FOR_EVER
    with Rig(
        folder, script=SCRIPT, agents=1, storage=folder / "store", entry=plan.entry, env=plan.environment()
    ) as rig:
        said: list[str] = []
        for attempt in range(1, (FOR_EVER_ATTEMPTS if failing else ATTEMPTS) + 1):
            agent = rig.agents[0].process
            rig.wait(lambda a=agent: rig.coordinator.reports or a.poll() is not None, "up, or over", HANG_S)
            if agent.poll() is None:
                rig.run_one(0, attempt, 0, [0])
            rig.wait(
                lambda a=agent, n=attempt: a.poll() is not None or rig.completed() or rig.ended(0, attempt=n),
                f"attempt {attempt} of {plan} ends",
                HANG_S,
            )
            if agent.poll() is not None:
                assert agent.poll() in OURS - {0}, f"{plan}: exit code {agent.poll()}\n{rig.everything()}"
                rig.coordinator.forget(*rig.coordinator.reports)
                rig.start(0, {} if failing else {os_faults._ENV: "null"})
            elif rig.ended(0, attempt=attempt) and not rig.completed():
                end = rig.rank(0)
                if end["kind"] == contract.END_OK:
                    rig.wait(lambda a=agent: rig.completed() or a.poll() is not None, f"{plan}: stored", HANG_S)
                    break
                assert end["kind"] in (*ENDED, contract.END_INTERNAL, contract.END_LOST), f"{plan}: {end}"
                assert end["error"] is None or end["error"]["message"], f"{plan}: no words: {end}"
                said.append(str(end["error"]))
            if rig.completed():
                break
            if staging_goes and attempt == 1:
                rig.wait((folder / "store/checkpoints/1-1-2/.trainjob/manifest.json").exists, "stored", HANG_S)
                shutil.rmtree(rig.work_dir(0) / "staging/1-1-2")
        else:
            assert failing, f"{plan}: not complete after {ATTEMPTS} attempts\n{said}\n{rig.everything()}"
        rig.exit(0)
        code = rig.exit_code(0, HANG_S)
        assert code in OURS, f"{plan}: exit code {code}\n{rig.everything()}"
        left = processes_with(rig.pod_uid(0))
        assert left == [], f"{plan}: left {left}\n{rig.everything()}"
        tmp = rig.work_dir(0) / "tmp"
        assert failing or not tmp.exists() or os.listdir(tmp) == [], f"{plan}: {os.listdir(tmp)}"
        return rig.text(0) + "".join(said)


@pytest.mark.parametrize("plan", SOME, ids=lambda p: f"{p.call}-{p.error}-{p.path.strip('/')}-{p.times or 'ever'}")
def test_a_call_that_fails_ends_what_it_belongs_to_and_nothing_hangs(tmp_path: Path, plan: OsFaults) -> None:
    text = drive(tmp_path, plan)
    assert (tmp_path / os_faults.LOG).read_text(), "nothing failed: the plan names no call of the agent"
    if plan.times == FOR_EVER:
        words = "start new thread" if plan.call == "thread" else os.strerror(getattr(os_faults.errno, plan.error))
        assert words in text, f"the cause is not named\n{text}"


RANK = "trainjob.session.rank"


@pytest.mark.parametrize("error", ["ENOSPC", "EROFS"])
def test_a_rank_without_room_for_its_stacks_trains(tmp_path: Path, error: str) -> None:
    text = drive(tmp_path, OsFaults("open", error, "/stack-0", times=FOR_EVER, module=RANK))
    assert (tmp_path / os_faults.LOG).read_text()
    assert "the stacks of this rank cannot be shown" in text and os.strerror(getattr(os_faults.errno, error)) in text
    assert "3" in [step.read_text() for step in tmp_path.glob("store/checkpoints/*/step")], "as far as without a fault"


@pytest.mark.parametrize(("error", "kind"), [("ESTALE", contract.END_EXCEPTION), ("EACCES", contract.END_START)])
def test_a_script_that_cannot_be_read_for_now_is_no_wrong_command(tmp_path: Path, error: str, kind: str) -> None:
    plan = OsFaults("open", error, "/train.py", module=RANK)
    with Rig(tmp_path, script="pass\n", agents=1, entry=plan.entry, env=plan.environment()) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert rig.rank(0)["kind"] == kind
        assert os.strerror(getattr(os_faults.errno, error)) in rig.rank(0)["error"]["message"]


def test_where_no_thread_can_be_started_logged_rows_leave_with_the_next_call(tmp_path: Path) -> None:
    plan = OsFaults("thread", "EAGAIN", "session/line.py", times=FOR_EVER, module=RANK)
    script = "import trainjob\nfor i in range(3):\n    trainjob.log({'x': i})\ntrainjob.report({'i': 1})\n"
    with Rig(
        tmp_path, script=script, agents=1, storage=tmp_path / "store", entry=plan.entry, env=plan.environment()
    ) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0), "ended")
        assert rig.rank(0)["kind"] == contract.END_OK, rig.rank(0)["error"]
        rig.wait(rig.completed, "completed")
    assert (tmp_path / os_faults.LOG).read_text()
    rows = "".join(file.read_text() for file in (tmp_path / "store/history").iterdir())
    assert all(f'"x": {i}' in rows or f'"x":{i}' in rows for i in range(3)), rows


@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_a_restore_that_cannot_be_listed_ends_the_attempt(tmp_path: Path, call: str) -> None:
    plan = OsFaults(call, "ENOSPC", ".files.json" if call == "open" else "/restore/2")
    text = drive(tmp_path, plan, staging_goes=True)
    assert (tmp_path / os_faults.LOG).read_text() and "No space left on device" in text


def sites(folder: Path, call: str, module: str = os_faults.AGENT_MODULE) -> list[str]:
    """What the calls of an agent are told apart by."""
    drive(folder, OsFaults(call, "EIO", times=RECORD, module=module))
    found = []
    for line in (folder / os_faults.LOG).read_text().splitlines():
        path = line.removeprefix(str(folder))
        if path == line and "/trainjob/agent/" not in line and "/trainjob/checkpoint/" not in line:
            continue  # not the agent's own: imports, /proc
        path = re.sub(r"^.*/trainjob/", "/trainjob/", path)
        path = CHANCE.split(path)[0]
        if "/__pycache__/" not in path and path not in found:
            found.append(path)
    return found


@pytest.mark.skipif(not os.environ.get("TRAINJOB_TEST_EVERY_FAULT"), reason="minutes: TRAINJOB_TEST_EVERY_FAULT=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", ERRORS)
def test_every_call_that_fails(tmp_path: Path, call: str) -> None:
    wrong = []
    for at, path in enumerate(sites(tmp_path / "sites", call)):
        for error in ERRORS[call]:
            for times in (1, FOR_EVER):
                if times == FOR_EVER and COORDINATOR in path:
                    continue  # training goes on without it, and an idle agent ends after ten minutes
                if times == FOR_EVER and error == "ECONNABORTED":
                    continue  # who hung up is no longer there to be accepted
                try:
                    drive(tmp_path / f"{at}-{error}-{times}", OsFaults(call, error, path, times=times))
                except AssertionError as failure:
                    wrong.append(f"{call} {error} {path} {times}: {str(failure)[:6000]}")
    assert not wrong, "\n=====\n".join(wrong)


CHILDS = ("open", "write", "close", "mkdir", "rename", "link", "fsync", "listdir", "scandir", "unlink", "rmdir", "read")
CHILDS += ("stat",)


@pytest.mark.skipif(not os.environ.get("TRAINJOB_TEST_EVERY_FAULT"), reason="minutes: TRAINJOB_TEST_EVERY_FAULT=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", CHILDS)
def test_every_call_that_fails_once_in_the_storage_child_is_made_up_for(tmp_path: Path, call: str) -> None:
    """What was acknowledged is stored all the same, whichever call it was."""
    wrong = []
    for at, path in enumerate(sites(tmp_path / "sites", call, os_faults.STORAGE_CHILD)):
        if not path:
            continue  # whatever a child does first: of each that is started anew it would fail
        for error in ERRORS[call]:
            folder = tmp_path / f"{at}-{error}"
            try:
                drive(folder, OsFaults(call, error, path, module=os_faults.STORAGE_CHILD))
                stored = {one.parent.parent for one in folder.glob("store/checkpoints/*/.trainjob/manifest.json")}
                assert "3" in [(one / "step").read_text() for one in stored], "the last one"
            except AssertionError as failure:
                wrong.append(f"{call} {error} {path}: {str(failure)[:6000]}")
    assert not wrong, "\n=====\n".join(wrong)


def test_storage_that_refuses_at_a_restart_is_tried_again_and_at_the_first_start_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("in the way")
    with Rig(tmp_path, script=SCRIPT, agents=1, storage=store) as rig:
        rig.run(1)
        rig.wait(lambda: rig.ended(0, attempt=1), "the first start says so at once")
        assert rig.rank(0)["kind"] == contract.END_STORAGE
        store.unlink()
        rig.run(2)
        rig.wait(lambda: rig.ended(0, attempt=2) or rig.completed(), "runs")
        rig.wait(lambda: rig.report(0)["quiet"], "ended")
        take_away(store)
        rig.run(3)
        rig.wait(lambda: "is tried again" in (rig.report(0)["warning"] or ""), "said")
        assert not rig.ended(0, attempt=3)
        bring_back(store)
        rig.wait(rig.completed, "went on")
        assert rig.report(0)["warning"] is None
