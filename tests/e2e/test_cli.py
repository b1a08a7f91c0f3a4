"""The command line and the trainer as a user has them, against the cluster with its real operator and kubelets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import e2e
from support.release import operator  # noqa: F401 - a fixture
from trainjob_api import contract

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.timeout(900)]

WITHIN_S = e2e.PATIENCE_S + 60
"""For commands that run to their end."""

COUNTS = """
import sys, time, helper, trainjob
checkpoint = trainjob.get_checkpoint()
first = checkpoint.to_dict()["step"] if checkpoint else 0
print("from", first, helper.NAME, flush=True)
for step in range(first + 1, int(sys.argv[1]) + 1):
    # Before the report: a rank that is ended right after it goes on from there, and the line of that step would never have been written.
    print("reports", step, flush=True)
    trainjob.report({"loss": 1 / step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step, total_steps=int(sys.argv[1]))
    time.sleep(0.1)
"""


class User:
    """A directory with a script, and `tj` in it."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self.folder, self.namespace = folder, namespace
        (folder / "train.py").write_text(COUNTS)
        (folder / "helper.py").write_text("NAME = 'helped'\n")
        self._running: list[subprocess.Popen[bytes]] = []

    def words(self, *words: str) -> list[str]:
        before, _, after = " ".join(words).partition(" -- ")
        return [
            sys.executable,
            "-m",
            "trainjob.cli",
            *before.split(),
            "-n",
            self.namespace,
            *(["--", *after.split()] if after else []),
        ]

    def tj(self, *words: str, code: int = contract.CLI_OK) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.words(*words), cwd=self.folder, capture_output=True, text=True, timeout=WITHIN_S)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, name: str, steps: int, *options: str) -> subprocess.CompletedProcess[str]:
        where = f"--volume {e2e.SHARED}/{self.namespace}:/ckpt --storage /ckpt --image {e2e.IMAGE}"
        return self.tj("submit train.py --workers 2 --name", name, where, *options, "--", str(steps))

    def follows(self, *words: str) -> Following:
        running = Following(self.words(*words), self.folder)
        self._running.append(running.process)
        return running

    def close(self) -> None:
        for process in self._running:
            process.kill()


class Following:
    """A command that goes on; its outputs are files."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(words, cwd=folder, stdout=out, stderr=err)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, text: str) -> None:
        e2e.eventually(f"{text!r} in the followed logs", lambda: text in self.out + self.err)

    def steps(self, rank: int) -> list[int]:
        return [int(step) for step in re.findall(rf"^r0{rank} \| reports (\d+)$", self.out, re.MULTILINE)]


@pytest.fixture
def user(namespace: str, tmp_path: Path) -> Iterator[User]:
    found = User(tmp_path, namespace)
    yield found
    found.close()


def test_a_script_with_its_code_runs_to_its_end(user: User) -> None:
    shown = user.submit("count", 10, "--wait", "--logs")
    assert "r00 | from 0 helped" in shown.stdout
    assert {int(step) for step in re.findall(r"r01 \| reports (\d+)", shown.stdout)} == set(range(1, 11))
    assert re.search(r"^count completed in .* with 1 attempt$", shown.stderr, re.MULTILINE)
    assert "Complete" in user.tj("list").stdout
    assert "reports 10" in user.tj("logs count --rank 1 --tail 3").stdout
    user.tj("wait count")


def test_following_goes_through_restart_scale_and_a_lost_pod_and_misses_nothing(user: User) -> None:
    user.submit("long", 100_000)
    followed = user.follows("logs long -f --rank 0")
    followed.until("r00 | reports 5")
    user.tj("restart long")
    followed.until("attempt 2 resumes from")
    followed.until("[RestartRequested]")
    e2e.eventually("a line of attempt 2", lambda: followed.out.count("r00 | from") == 2)
    user.tj("scale long 3")
    followed.until("3 workers, 3 ranks [Scaled]")
    e2e.eventually("a line of attempt 3", lambda: followed.out.count("r00 | from") == 3)
    e2e.kubectl("delete", "pod", "long-0", "-n", user.namespace, "--wait=false")
    followed.until("attempt 4 started")
    followed.until("attempt 4 resumes from")
    e2e.eventually("a line of attempt 4", lambda: followed.out.count("r00 | from") == 4)
    user.tj("cancel long")
    assert followed.process.wait(WITHIN_S) == contract.CLI_STOPPED
    assert "Cancelled" in user.tj("list").stdout
    steps = followed.steps(0)
    assert set(range(1, max(steps) + 1)) == set(steps), "a step's line is missing"
    user.tj("resume long")
    user.tj("wait long --for running --timeout 4m")
    user.tj("delete long --wait")
    assert e2e.pods("long", user.namespace) == []


def test_a_failure_is_told_with_its_cause_and_ctrl_c_leaves_the_job(user: User) -> None:
    (user.folder / "train.py").write_text("import trainjob\ntrainjob.report({'a': 1})\nraise ValueError('bad batch')\n")
    done = user.tj(f"submit train.py --image {e2e.IMAGE} --name bad --restarts 0 --wait", code=contract.CLI_JOB_FAILED)
    assert "raised ValueError: bad batch" in done.stderr
    assert "ValueError: bad batch" in user.tj("status bad").stdout
    user.tj("wait bad", code=contract.CLI_JOB_FAILED)
    (user.folder / "train.py").write_text(COUNTS)
    watched = user.follows(f"submit train.py --image {e2e.IMAGE} --name bad --replace --wait --logs -- 100000")
    watched.until("reports 3")
    watched.process.send_signal(signal.SIGINT)
    assert watched.process.wait(WITHIN_S) == contract.CLI_INTERRUPTED
    assert "continues without being watched" in watched.err
    # Lines of ranks come another way than the word that they run.
    e2e.eventually("it runs on", lambda: e2e.job("bad", user.namespace)["status"]["phase"] == "Running")


TRAINER = """
import sys
import trainjob
from mymodel import scale

def loop(config):
    import torch, torch.distributed as dist
    total = torch.ones(1) * scale(dist.get_rank() + 1)
    dist.all_reduce(total)
    trainjob.report({"total": float(total)}, step=1)
    if config["fail"]:
        raise RuntimeError("on purpose")

trainer = trainjob.TorchTrainer(
    loop,
    train_loop_config={"fail": sys.argv[1] == "fail"},
    scaling_config=trainjob.ScalingConfig(num_workers=2),
    run_config=trainjob.RunConfig(name=sys.argv[1]),
    backend=trainjob.Kubernetes(image=IMAGE, namespace=NAMESPACE, env={"OMP_NUM_THREADS": "1"}),
)
if sys.argv[1] == "later":
    run = trainer.submit()
    result = trainjob.ClusterRun.attach(run.name, namespace=NAMESPACE).result(timeout_s=120)
else:
    result = trainer.fit()
print("metrics", result.metrics)
"""


def test_a_function_from_a_notebook_trains_on_the_cluster(user: User) -> None:
    """Its helper module is beside it, not in the image; nor are cloudpickle and TrainJob."""
    (user.folder / "mymodel.py").write_text("def scale(x):\n    return 10 * x\n")
    (user.folder / "notebook.py").write_text(f"IMAGE, NAMESPACE = {e2e.IMAGE!r}, {user.namespace!r}\n{TRAINER}")
    for mode in ("fit", "later"):
        done = subprocess.run(
            [sys.executable, "notebook.py", mode],
            cwd=user.folder,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env=dict(os.environ),
        )
        assert "metrics {'total': 30.0}" in done.stdout, done.stderr
    done = subprocess.run(
        [sys.executable, "notebook.py", "fail"],
        cwd=user.folder,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=dict(os.environ),
    )
    assert "TrainingFailedError" in done.stderr
    assert "RuntimeError: on purpose" in done.stderr


def test_doctor_finds_a_working_installation(user: User) -> None:
    checks = ("cluster", "crd", "operator", "leader", "coordinator", "rights")

    def all_well() -> bool:
        done = subprocess.run(user.words("doctor"), cwd=user.folder, capture_output=True, text=True, timeout=WITHIN_S)
        shown.append(f"{done.returncode}: {done.stdout}{done.stderr}")
        found = all(re.search(rf"^ok +{check} ", done.stdout, re.MULTILINE) for check in checks)
        return found and done.returncode == contract.CLI_OK

    shown: list[str] = []
    try:
        # A leader that a busy machine held up renews its Lease late.
        e2e.eventually("doctor finds all well", all_well)
    except AssertionError:
        raise AssertionError(shown[-1]) from None
