"""The loop inside the process that asked for it: `num_workers=0`, `tj run --in-process`, `trainjob.init()`, torchrun."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import trainjob
from support.jobs import condition, failure, job
from support.patience import HANG_S
from support.scenario import Stage, wait_until
from trainjob import RunConfig, ScalingConfig, TorchTrainer, TrainingFailedError, UserCallback, session
from trainjob.launch import ConfigError, LaunchError
from trainjob.launch import job as jobs
from trainjob.launch.handover.callbacks import RunContext
from trainjob.launch.in_process import fit, guest, places, stand_in
from trainjob.launch.in_process.hearing import Hearing
from trainjob.launch.outcome.hearers import Hearers
from trainjob.session.errors import AgentLostError, BarrierMismatchError
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

SCRIPT = """
import os, sys, time, trainjob
if "init" in sys.argv:
    trainjob.init(name="job", storage="storage")
found = trainjob.get_checkpoint()
start = found.to_dict()["step"] + 1 if found else 0
who = trainjob.get_context()
# With its end of line in one write: processes under torchrun share the pipe.
os.write(1, f"rank {who.rank} of {who.world_size} starts at {start} in {os.getpid()}\\n".encode())
for step in range(start, 4):
    trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
    if step == 1:
        if "raise" in sys.argv: raise LookupError("no such digit")
        if "hook" in sys.argv:
            sys.excepthook = lambda kind, error, trace: print("own hook:", error)
            raise LookupError("no such digit")
        if "exit" in sys.argv: sys.exit(3)
        if "stop" in sys.argv: breakpoint()
        if "wait" in sys.argv:
            print("waits", flush=True)
            time.sleep(600)
        while "loop" in sys.argv:
            trainjob.report({"step": step})
            print("loops", flush=True)
            time.sleep(0.05)
print("done")
"""


class Told(UserCallback):
    """What a trainer's callback heard."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.errors: list[dict[int, Exception]] = []
        self.runs: dict[str, Any] = {}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.runs[run_context.run_id] = run_context.train_loop_config
        assert checkpoint is not None
        self.steps.append(metrics[0]["step"])

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.errors.append(worker_exceptions)


@pytest.mark.slow
def test_num_workers_0_trains_here_and_a_failed_run_is_gone_on_with(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[int, int, int]] = []
    told = Told()

    def loop(config: dict[str, Any]) -> Any:
        import torch.distributed as dist

        found = trainjob.get_checkpoint()
        first = found.to_dict()["step"] + 1 if found else 0
        started.append((os.getpid(), dist.get_world_size(), first))
        for step in range(first, 4):
            trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
            if step == config["breaks_at"]:
                raise LookupError("no such digit")
        return lambda: "a value that no process could be sent"

    def fit(breaks_at: int) -> trainjob.Result:
        return TorchTrainer(
            loop,
            train_loop_config={"breaks_at": breaks_at},
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(name="job", storage_path=stage.storage, callbacks=[told]),
        ).fit()

    before = dict(os.environ)
    with pytest.raises(LookupError, match="no such digit") as caught:
        fit(1)
    frames = traceback.extract_tb(caught.tb)
    assert (frames[-1].name, frames[-1].filename) == ("loop", __file__), "its own traceback, up to its own line"
    assert [set(each) for each in told.errors] == [{0}] and told.errors[0][0] is caught.value
    assert dict(os.environ) == before
    result = fit(99)
    assert result.return_value() == "a value that no process could be sent"
    assert result.metrics == {"step": 3} and stage.committed() == ["1-1-1", "1-1-2", "2-1-1", "2-1-2"]
    assert started == [(os.getpid(), 1, 0), (os.getpid(), 1, 2)]
    assert told.steps == [0, 1, 2, 3]
    assert list(told.runs.values()) == [{"breaks_at": 1}, {"breaks_at": 99}], "each fit() is a run of its own"
    assert [c.id for c, _ in result.best_checkpoints] == stage.committed(), "those that it went on from too"
    assert dict(os.environ) == before
    assert session.experiment_name is None and session.after_report is None, "nor is anything left for the next one"
    shown = capfd.readouterr().err
    assert f"job: 1 rank, in this process (pid {os.getpid()}); checkpoints in {stage.storage}/default/job" in shown


def test_a_job_that_fails_after_its_loop_is_told_to_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved could not be stored, say: as of a job whose ranks are processes of their own."""
    told = Told()
    run: Any = object.__new__(fit._InProcess)
    run._hearers, run._context = Hearers([told], cast(RunContext, None)), SimpleNamespace(path="")
    run._polled, run._place = SimpleNamespace(last=lambda *place: []), (1, 1)
    monkeypatch.setattr(fit.results, "read", lambda *given, **more: None)
    failed = job(
        {
            "conditions": [condition("Failed", "True", "StorageError", "the disk is full")],
            "lastFailure": failure(reason="StorageError", rank=None, traceback=None, message="the disk is full"),
        }
    )
    with pytest.raises(TrainingFailedError, match="the disk is full"):
        run._conclude(guest.End(job=failed, interrupted=False), None)
    assert [list(each) for each in told.errors] == [[-1]] and "the disk is full" in str(told.errors[0][-1])


def test_a_rank_is_no_place_for_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_AGENT_SOCKET, "/somewhere")
    with pytest.raises(LaunchError, match="is a rank of a TrainJob already: call the training function itself"):
        places.place(os.environ)


def test_a_launcher_over_several_machines_is_refused_with_the_way_out() -> None:
    with pytest.raises(LaunchError, match=r"2 of the 4 processes .* `tj submit`"):
        places.place({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})


def test_num_workers_0_is_not_for_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"num_workers.*0 trains in this very process"):
        TorchTrainer(
            lambda: None, scaling_config=ScalingConfig(num_workers=0), backend=trainjob.Kubernetes(image="image")
        )


def test_a_stand_in_of_a_later_attempt_says_why_it_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.ENV_RANK, "0")
    monkeypatch.setenv(contract.ENV_ATTEMPT, "2")
    assert stand_in.main([str(tmp_path)]) == 1
    assert "cannot be started again from here: run it once more" in capsys.readouterr().err


class Shown:
    """A display that keeps what it is told; `broken`: it raises."""

    def __init__(self, *, broken: bool = False) -> None:
        self.told: list[str] = []
        self._broken = broken

    def status(self, job: TrainJob) -> None:
        self.note(job.metadata.name)

    def line(self, text: str) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        self.told.append(text)
        if self._broken:
            raise ValueError("no such output")

    def close(self) -> None: ...


STRAYS = "\n".join(["a banner", "\xff", "", "7", "null", '["status"]', '{"level": "info"}', '{"job": ', "[" * 100_000])
"""What libraries may print on the same pipe."""


@pytest.mark.parametrize("display", [None, Shown(), Shown(broken=True)], ids=["unseen", "seen", "not drawn"])
def test_an_answer_that_no_pipe_holds_is_taken(
    display: Shown | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The companion cannot end before somebody reads what it says; neither a view that fails nor a stray line ends the
    training.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    job = jobs.from_script(jobs.ScriptJob(command=(sys.executable, "x.py"), name="job", storage=str(tmp_path)))
    made = guest.Guest(job, places.Place(), display=display)
    shown = [] if display is None else [{"note": "n" * (1 << 20)}, {"line": "l"}, {"status": job.to_json()}]
    last = {"pad": "x" * (1 << 20), "job": job.to_json(), "interrupted": False}
    said = [STRAYS.encode("latin-1"), *(json.dumps(each).encode() for each in (*shown, last)), b"bye", b""]
    (tmp_path / "answer").write_bytes(b"\n".join(said))
    pipe = subprocess.PIPE
    made._companion = subprocess.Popen(["cat", str(tmp_path / "answer")], stdin=pipe, stdout=pipe)
    assert made._companion.stdout is not None
    made._hearing = Hearing(made._companion.stdout, display)
    found: list[guest.End | None] = []
    waiting = threading.Thread(target=lambda: found.append(made._ended()), daemon=True)
    waiting.start()
    waiting.join(HANG_S)
    made._companion.kill()
    assert [end.job.metadata.name for end in found if end is not None] == ["job"]
    if display is not None:
        broken = "no such output" in capsys.readouterr().err
        assert [text[:3] for text in display.told] == (["nnn"] if broken else ["nnn", "l", "job"])


def test_a_ctrl_c_as_the_answer_is_read_loses_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"job": 1}\n')
    os.close(writing)
    read, pressed = os.read, list[bool]()

    def interrupted(descriptor: int, size: int) -> bytes:
        """A signal is handled in the main thread, as soon as a call of the system has returned there."""
        piece = read(descriptor, size)
        if threading.current_thread() is threading.main_thread() and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return piece

    monkeypatch.setattr(os, "read", interrupted)
    with open(reading, "rb", buffering=0) as stream:
        assert Hearing(stream, None).answer(lambda: None) == {"job": 1}


def test_a_ctrl_c_as_the_answer_is_waited_for_loses_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    read, reads = os.read, threading.Event()
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()
    main = threading.main_thread().ident
    assert main is not None

    def seen(descriptor: int, size: int) -> bytes:
        reads.set()
        return read(descriptor, size)

    def press() -> None:
        """It is heard before the answer comes."""
        try:
            assert reads.wait(HANG_S)
            signal.pthread_kill(main, signal.SIGINT)
            heard.get(timeout=HANG_S)
            os.write(writing, b'{"job": 1}\n')
        finally:
            os.close(writing)

    monkeypatch.setattr(os, "read", seen)
    presses = threading.Thread(target=press, daemon=True)
    presses.start()
    with open(reading, "rb", buffering=0) as stream:
        hearing = Hearing(stream, None)
        assert hearing.answer(lambda: heard.put(None)) == {"job": 1}
        hearing.close()
    presses.join(HANG_S)


# --- Scripts ----------------------------------------------------------------------------------------------------------


def start(stage: Stage, *words: str, **variables: str) -> subprocess.Popen[str]:
    (stage.root / "train.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=stage.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def ended(process: subprocess.Popen[str], typed: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(typed, timeout=HANG_S)
    return process.returncode, out, err


RUN = ("-m", "trainjob.cli", "run", "--in-process", "train.py", "--name", "job", "--storage", "storage")


@pytest.mark.slow
def test_a_script_in_the_process_of_tj_run(stage: Stage) -> None:
    process = start(stage, *RUN, "--", "raise")
    code, out, err = ended(process)
    assert code == contract.CLI_JOB_FAILED, err
    assert f"rank 0 of 1 starts at 0 in {process.pid}" in out
    assert err.count("Traceback") == 1 and err.count('File "') == 1, "Python's own, without ours"
    assert "job failed: rank 0 on job-0 raised LookupError: no such digit" in err
    assert "tj run train.py --name job --storage storage --in-process -- raise" in err
    code, out, err = ended(start(stage, *RUN))
    assert code == contract.CLI_OK, err
    assert "starts at 2 in" in out and "job completed" in err and stage.committed()[-1] == "2-1-2"


@pytest.mark.slow
def test_a_plain_python_becomes_a_job_where_the_script_or_a_variable_asks_for_it(stage: Stage) -> None:
    process = start(stage, "train.py", "init", "stop")
    code, out, err = ended(process, "p step + 41\ncontinue\n")
    assert code == 0, err
    assert "(Pdb) 42" in out and f"starts at 0 in {process.pid}" in out and "done" in out
    notice = f"job: 1 rank, in this process (pid {process.pid}); checkpoints in {stage.storage}/default/job"
    assert err.splitlines()[0] == notice
    code, out, err = ended(start(stage, "train.py", TRAINJOB_IN_PROCESS="named", HOME=str(stage.root)))
    assert (code, out.splitlines()[-1]) == (0, "done"), err
    assert (stage.root / "trainjob_results/default/named/checkpoints/1-1-4").is_dir()
    code, out, err = ended(start(stage, "train.py"))
    assert code == 1 and "trainjob.init()" in err and "TRAINJOB_IN_PROCESS=1" in err, "nobody asked: it says how to"


@pytest.mark.slow
def test_a_plain_python_that_exits_badly_is_gone_on_with(stage: Stage) -> None:
    code, _, err = ended(start(stage, "train.py", "init", "exit"))
    assert code == 3, err
    code, out, err = ended(start(stage, "train.py", "init"))
    assert code == 0 and "starts at 2 in" in out, err


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_its_checkpoints_and_nothing_else(stage: Stage) -> None:
    process = start(stage, "train.py", "init", "wait")
    assert process.stdout is not None
    while "waits" not in process.stdout.readline():
        assert process.poll() is None
    code, _, err = ended(start(stage, *RUN))
    assert code == contract.CLI_ERROR and "is running already" in err, "one of a name at a time"
    process.send_signal(signal.SIGKILL)
    ended(process)
    wait_until(lambda: stage.committed() == ["1-1-1", "1-1-2"])
    code, out, err = ended(start(stage, *RUN))
    assert code == 0 and "starts at 2 in" in out, err


STOP = ("-m", "trainjob.cli", "stop", "job", "--storage", "storage")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "exit_code"), [((*RUN, "--", "loop"), contract.CLI_INTERRUPTED), (("train.py", "init", "loop"), 1)]
)
def test_one_that_tj_stop_ends_is_told_so_and_shown_no_traceback(
    stage: Stage, words: tuple[str, ...], exit_code: int
) -> None:
    process = start(stage, *words)
    assert process.stdout is not None
    while "loops" not in process.stdout.readline():
        assert process.poll() is None
    code, _, err = ended(start(stage, *STOP))
    assert code == contract.CLI_OK, err
    code, _, err = ended(process)
    assert code == exit_code, err
    assert "job was stopped" in err and "Traceback" not in err
    code, out, err = ended(start(stage, *RUN))
    assert code == 0 and "starts at 2 in" in out, err


def fit_here(stage: Stage, loop: Callable[[], None], *callbacks: UserCallback) -> None:
    """In this process."""
    TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="job", storage_path=stage.storage, callbacks=list(callbacks)),
    ).fit()


@pytest.mark.slow
def test_callbacks_of_num_workers_0_hear_of_a_loop_that_exits(stage: Stage) -> None:
    told = Told()

    def loop() -> None:
        trainjob.report({"step": 0}, checkpoint=trainjob.Checkpoint.from_dict({"step": 0}))
        sys.exit(3)

    with pytest.raises(SystemExit) as caught:
        fit_here(stage, loop, told)
    assert caught.value.code == 3
    assert told.steps == [0]
    (error,) = told.errors
    assert set(error) == {0} and "exit code 3" in str(error[0])


@pytest.mark.slow
def test_num_workers_0_that_tj_stop_ends_is_interrupted(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    stops: list[subprocess.Popen[str]] = []

    def loop() -> None:
        trainjob.report({"step": 0}, checkpoint=trainjob.Checkpoint.from_dict({"step": 0}))
        stops.append(start(stage, *STOP))
        while True:
            trainjob.report({"step": 1})
            time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt) as caught:
        fit_here(stage, loop)
    assert caught.value.__context__ is None, "nothing is shown but that"
    assert ended(stops[0])[0] == contract.CLI_OK
    assert "stopped; a TorchTrainer with name='job' resumes from its checkpoint" in capfd.readouterr().err


@pytest.mark.slow
def test_num_workers_0_whose_rank_is_ended_fails_with_what_ended_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins: list[int] = []
    begin = guest.Guest.begin

    def begin_and_tell(self: guest.Guest) -> None:
        begin(self)
        assert self._stand_in is not None
        stand_ins.append(struct.unpack("3i", self._stand_in.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    monkeypatch.setattr(guest.Guest, "begin", begin_and_tell)

    def loop() -> None:
        trainjob.report({"step": 0})
        os.kill(stand_ins[0], signal.SIGKILL)
        while True:
            trainjob.report({"step": 1})

    with pytest.raises(TrainingFailedError, match=r"rank 0 on job-0 was killed by SIGKILL") as caught:
        fit_here(stage, loop)
    assert caught.value.__context__ is None, "not with a call that came after it"


def test_what_is_only_the_answer_to_a_rank_that_was_ended_is_known_by_its_stand_in(stage: Stage) -> None:
    """An agent that dies closes its connections a moment before its stand-ins end, and programs raise their own from
    what a call raises.
    """
    job = jobs.from_script(jobs.ScriptJob(command=("python", "train.py"), name="job", storage=str(stage.storage)))
    ended = guest.Guest(job, places.Place())
    mismatch, lost, own = BarrierMismatchError("stopped"), AgentLostError("gone"), LookupError("no such digit")
    own.__cause__ = own
    raised = ValueError("in step 3")
    raised.__cause__ = mismatch
    ended._stand_in, theirs = socket.socketpair()
    with ended._stand_in:
        assert not any(map(ended.tells_of_its_end, (mismatch, own, raised, None)))
        closing = threading.Timer(0.05, theirs.close)
        closing.start()
        assert ended.tells_of_its_end(lost)
        closing.join()
        assert ended.tells_of_its_end(mismatch) and ended.tells_of_its_end(raised)
        assert not ended.tells_of_its_end(own)


@pytest.mark.slow
def test_a_script_that_has_a_hook_of_its_own_and_breaks_is_no_complete_job(stage: Stage) -> None:
    code, out, err = ended(start(stage, "train.py", "init", "hook"))
    assert (code, "own hook: no such digit" in out) == (1, True), err
    code, out, err = ended(start(stage, "train.py", "init"))
    assert code == 0 and "starts at 2 in" in out, err


@pytest.mark.slow
def test_under_torchrun_its_processes_are_the_ranks_of_one_job(stage: Stage) -> None:
    process = start(stage, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "init")
    code, out, err = ended(process)
    assert code == 0, err
    assert sorted(line.rpartition(" in ")[0] for line in out.splitlines() if "starts" in line) == [
        "rank 0 of 2 starts at 0",
        "rank 1 of 2 starts at 0",
    ]
    assert err.count("job: 2 ranks, torchrun's processes") == 1
    assert stage.committed() == ["1-1-1", "1-1-2", "1-1-3", "1-1-4"]


FIT = """
import os, trainjob
def loop():
    for step in range(2):
        trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}))
    return trainjob.get_context().get_world_rank()
here, kept = trainjob.ScalingConfig(num_workers=0), trainjob.RunConfig(storage_path=os.path.abspath("storage"))
found = trainjob.TorchTrainer(loop, scaling_config=here, run_config=kept).fit()
os.write(1, f"{found.return_value}: {found.metrics} {found.checkpoint.id} {found.path}\\n".encode())
"""


@pytest.mark.slow
def test_under_torchrun_all_processes_get_the_result_of_a_job_that_has_no_name(stage: Stage) -> None:
    """Each of them would make a name of its own."""
    (stage.root / "fit.py").write_text(FIT)
    code, out, err = ended(start(stage, "-m", "torch.distributed.run", "--nproc-per-node", "2", "fit.py"))
    assert code == 0, err
    said = sorted(line.partition(": ")[::2] for line in out.splitlines())
    assert [rank for rank, _ in said] == ["0", "1"]
    assert said[0][1] == said[1][1] and said[0][1].startswith("{'step': 1} 1-1-2 "), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "2"), "torchrun --nproc-per-node 2"),
        (("--max-failures", "3"), "leave --max-failures out"),
    ],
)
def test_what_one_process_cannot_do_is_refused(stage: Stage, words: tuple[str, ...], said: str) -> None:
    code, _, err = ended(start(stage, *RUN, *words))
    assert code == contract.CLI_USAGE and said in err
