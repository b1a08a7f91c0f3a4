from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trainjob
from support.fake_agent import FakeAgent
from support.patience import HANG_S
from trainjob import Checkpoint, CheckpointUploadMode, session
from trainjob.session import alias, errors, link, offering, rank_state
from trainjob_api import contract

StartAgent = Callable[..., FakeAgent]


@pytest.mark.parametrize(
    "call",
    [
        lambda: trainjob.report({"a": 1}),
        lambda: trainjob.log({"a": 1}),
        trainjob.get_context,
        trainjob.get_checkpoint,
        trainjob.barrier,
        lambda: trainjob.broadcast_from_rank_zero(1),
    ],
)
def test_outside_a_worker_each_call_says_how_to_run(fresh_session: None, call: Callable[[], Any]) -> None:
    with pytest.raises(trainjob.NotInWorkerError) as caught:
        call()
    assert "tj run" in str(caught.value) and "TorchTrainer" in str(caught.value)


def test_of_several_processes_outside_a_worker_one_says_how_to_run(
    fresh_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for local_rank, says in (("0", True), ("1", False)):
        monkeypatch.setenv(contract.ENV_LOCAL_RANK, local_rank)
        with pytest.raises(trainjob.NotInWorkerError) as caught:
            trainjob.report({"a": 1})
        assert ("tj run" in str(caught.value)) == says
        assert ("local rank 0 says what to do" in str(caught.value)) != says


def test_the_context_is_the_agents(start_agent: StartAgent) -> None:
    agent = start_agent(world_size=2, rank=1, attempt=3)
    context = trainjob.get_context()
    assert (
        context.get_world_size(),
        context.get_world_rank(),
        context.get_local_rank(),
        context.get_local_world_size(),
        context.get_node_rank(),
    ) == (
        2,
        1,
        1,
        2,
        0,
    )
    assert (context.get_job_name(), context.get_experiment_name(), context.get_trial_name(), context.get_attempt()) == (
        "digits",
        "digits",
        "digits",
        3,
    )
    assert context.get_storage() == str(agent.root)
    agent.wait_for("hello", lambda: agent.hellos)
    (hello,) = agent.hellos
    assert hello["n"] > 0
    assert agent.hellos == [
        {
            "op": "hello",
            "rank": 1,
            "local_rank": 1,
            "world_size": 2,
            "attempt": 3,
            "pid": os.getpid(),
            "n": hello["n"],
            "first": hello["n"],
            "heard": 0,
        }
    ]


def test_a_damaged_environment_is_named(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    start_agent()
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(errors.TrainJobError, match="RANK='first'"):
        trainjob.get_context()


def test_a_report_carries_everything(start_agent: StartAgent) -> None:
    agent = start_agent()
    trainjob.report({"loss": 0.5}, step=10, total_steps=100, epoch=2)
    sent = agent.reports[0][0]
    assert sent == {
        "op": "collective",
        "n": 1,
        "kind": "report",
        "timeout_s": None,
        "metrics": {"loss": 0.5},
        "step": 10,
        "total_steps": 100,
        "epoch": 2,
        "checkpoint": None,
        "stop": False,
        "has_state": False,
        "wanted": False,
    }


@pytest.mark.parametrize(
    ("options", "mode", "delete"),
    [
        ({}, "ASYNC", False),
        ({"checkpoint_upload_mode": CheckpointUploadMode.ASYNC}, "ASYNC", True),
        ({"checkpoint_upload_mode": "SYNC"}, "SYNC", False),
        (
            {"checkpoint_upload_mode": CheckpointUploadMode.ASYNC, "delete_local_checkpoint_after_upload": False},
            "ASYNC",
            False,
        ),
    ],
)
def test_the_upload_mode_says_whether_files_may_go(
    start_agent: StartAgent, tmp_path: Path, options: dict[str, Any], mode: str, delete: bool
) -> None:
    agent = start_agent()
    folder = tmp_path / "model"
    folder.mkdir()
    checkpoint = Checkpoint.from_directory(str(folder))
    checkpoint.set_metadata({"epoch": 1})
    trainjob.report({}, checkpoint=checkpoint, **options)
    assert agent.reports[0][0]["checkpoint"] == {
        "path": str(folder),
        "delete": delete,
        "mode": mode,
        "metadata": {"epoch": 1},
    }
    assert folder.exists() is not delete


@pytest.mark.parametrize("how", ["NO_UPLOAD", "a function of the user's"])
def test_files_that_are_to_stay_where_they_are_are_offered_as_a_note_of_the_place(
    start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    agent = start_agent()
    offered: list[dict[str, Any]] = []
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for place in (str(tmp_path / "mine"), "s3://bucket/mine"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "model.pt").write_text("weights")
        checkpoint = Checkpoint(place)
        if how == "NO_UPLOAD":
            trainjob.report({}, checkpoint=checkpoint, checkpoint_upload_mode="NO_UPLOAD")
        else:
            upload = partial(lambda made, given, name: made, Checkpoint(place))
            trainjob.report({}, checkpoint=Checkpoint(str(tmp_path)), checkpoint_upload_fn=upload)
        offered.append(agent.reports[-1][0]["checkpoint"])
        assert (tmp_path / "mine" / "model.pt").exists()
    assert {offer["mode"] for offer in offered} == {"NO_UPLOAD"}
    assert not {offer["path"] for offer in offered} & {str(tmp_path / "mine"), "s3://bucket/mine"}


def test_files_that_could_not_stay_are_told_and_stored(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent()
    with pytest.raises(errors.CheckpointError, match="there is no folder"):
        trainjob.report({}, checkpoint=Checkpoint(str(tmp_path / "none")), checkpoint_upload_mode="NO_UPLOAD")
    with tempfile.TemporaryDirectory() as folder, pytest.warns(UserWarning, match="which goes with the run"):
        trainjob.report({}, checkpoint=Checkpoint(folder), checkpoint_upload_mode="NO_UPLOAD")
        assert agent.reports[-1][0]["checkpoint"]["path"] == folder
    made = Checkpoint.from_dict({"step": 1})
    trainjob.report({}, checkpoint=made, checkpoint_upload_mode="NO_UPLOAD")
    assert agent.reports[-1][0]["checkpoint"]["path"] == made.path, "the files of a handle of ours, not a note of them"


def test_a_place_in_the_jobs_storage_does_not_go_with_the_run(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop whose storage is below its temporary folder."""
    agent = start_agent()
    monkeypatch.setattr(tempfile, "tempdir", str(agent.root.parent))
    place = trainjob.get_context().get_storage().build_checkpoint_path_from_name("one")
    os.makedirs(place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainjob.report({}, checkpoint=Checkpoint(place), checkpoint_upload_mode="NO_UPLOAD")
    offered = agent.reports[-1][0]["checkpoint"]["path"]
    assert offered != place


def test_bad_arguments_are_refused_before_anything_is_sent(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    agent = start_agent()
    with pytest.raises(ValueError, match="checkpoint_upload_mode='later'"):
        trainjob.report({}, checkpoint=Checkpoint(str(tmp_path)), checkpoint_upload_mode="later")
    with pytest.raises(errors.CheckpointError, match="from_directory"):
        trainjob.report({}, checkpoint=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"step=1\.5"):
        trainjob.report({}, step=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"log\(\): metrics\['x'\]"):
        trainjob.log({"x": object()})
    with pytest.raises(ValueError, match="timeout_s=0"):
        trainjob.barrier(timeout_s=0)
    monkeypatch.setenv(contract.ENV_BARRIER_TIMEOUT_S, "soon")
    with pytest.raises(ValueError, match="'soon' is no number"):
        trainjob.barrier()
    assert agent.reports == []


def test_the_time_out_can_come_from_the_environment(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = start_agent()
    monkeypatch.setenv(contract.ENV_BARRIER_TIMEOUT_S, "12.5")
    trainjob.report({})
    assert agent.reports[0][0]["timeout_s"] == 12.5


@pytest.mark.parametrize(
    ("name", "words"),
    [("a/b", "without /"), ("", "without /"), (5, "without /"), ("runs", "another one"), (".x", "another")],
)
def test_a_name_that_no_checkpoint_can_have_is_refused(start_agent: StartAgent, name: Any, words: str) -> None:
    agent = start_agent()
    with pytest.raises(ValueError, match=f"checkpoint_dir_name={name!r} .*{words}"):
        trainjob.report({}, checkpoint_dir_name=name)
    assert agent.reports == []


def test_names_are_links_that_go_with_their_checkpoints(tmp_path: Path) -> None:
    for number in range(1, 8):
        alias.link(str(tmp_path), f"epoch_{number}", f"1-1-{number}")
        if number == 4:
            (tmp_path / "checkpoints" / "1-1-2").mkdir(parents=True)  # the one that is kept
    names = [path.name for path in sorted(tmp_path.iterdir()) if path.is_symlink()]
    assert names == ["epoch_2", "epoch_4", "epoch_5", "epoch_6", "epoch_7"], "1 and 3 were removed, 4-7 may yet come"
    alias.link(str(tmp_path), "epoch_2", "1-2-1")
    assert (tmp_path / "epoch_2").readlink() == Path("checkpoints/1-2-1")
    (tmp_path / "mine").write_text("not a link")
    with pytest.raises(FileExistsError, match="is no name of a checkpoint"):
        alias.link(str(tmp_path), "mine", "1-2-2")
    assert not alias.possible("s3://bucket/job") and not alias.possible(None)


def test_a_name_of_the_attempt_before_stays_while_its_checkpoint_may_still_come(tmp_path: Path) -> None:
    alias.link(str(tmp_path), "late", "1-1-9")
    for number in range(1, 4):
        alias.link(str(tmp_path), f"next_{number}", f"1-3-{number}")
        assert (tmp_path / "late").is_symlink(), "its upload goes on"
    alias.link(str(tmp_path), "next_4", "1-3-4")
    assert not (tmp_path / "late").is_symlink(), "it did not come"
    alias.link(str(tmp_path), "another run", "2-1-1")
    assert not (tmp_path / "next_4").is_symlink()


def test_the_agents_warnings_reach_the_user_once_each(start_agent: StartAgent) -> None:
    agent = start_agent()
    for name in ("model.pt", "optimizer.pt"):
        agent.warnings = [f"rank 0 and rank 1 gave different bytes for one name: {name}"]
        with pytest.warns(UserWarning, match=name):
            trainjob.report({})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainjob.report({})


def test_stop_ends_the_rank_inside_report(start_agent: StartAgent) -> None:
    agent = start_agent()
    session.stop_criterion = lambda metrics: metrics["epoch"] >= 2
    trainjob.report({"epoch": 1})
    with pytest.raises(SystemExit) as caught:
        trainjob.report({"epoch": 2})
    assert caught.value.code == 0
    assert [report[0]["stop"] for report in agent.reports] == [False, True]


def test_logs_arrive_in_order_before_the_report_that_follows(start_agent: StartAgent) -> None:
    agent = start_agent()
    for step in range(1200):
        trainjob.log({"loss": step / 2}, step=step)
    trainjob.report({})
    assert [row["step"] for row in agent.rows] == list(range(1200))
    assert agent.rows[3]["metrics"] == {"loss": 1.5} and agent.rows[3]["time"] > 0


def test_logs_arrive_by_themselves(start_agent: StartAgent) -> None:
    agent = start_agent()
    trainjob.log({"loss": 1.0})
    agent.wait_for("the row", lambda: agent.rows)
    assert agent.rows[0]["step"] is None


def test_log_rows_of_other_ranks_are_checked_and_go_nowhere(start_agent: StartAgent) -> None:
    agent = start_agent(rank=1, world_size=2)
    for step in range(10):
        trainjob.log({"loss": 1.0}, step=step)
    with pytest.raises(ValueError, match="object"):
        trainjob.log({"x": object()})
    link.link().flush()
    trainjob.get_checkpoint()  # its answer comes after all that was said before
    assert agent.rows == []


def test_a_broadcast_that_is_too_large_is_refused_with_the_way_out(start_agent: StartAgent) -> None:
    start_agent()
    with pytest.raises(ValueError, match=r"data of 17 MiB .* more than the 16 MiB .* torch\.distributed\.broadcast"):
        trainjob.broadcast_from_rank_zero(b"x" * (17 << 20))


def test_the_resumed_checkpoint_then_the_reported_ones(start_agent: StartAgent, tmp_path: Path) -> None:
    old = tmp_path / "1-1-9"
    old.mkdir()
    start_agent(resume_from=old, attempt=2)
    first = trainjob.get_checkpoint()
    assert first is not None and (first.id, first.step, first.epoch, first.metrics) == ("1-1-9", 7, 1, {"loss": 0.5})
    assert trainjob.get_checkpoint() is first
    trainjob.report({"x": 1}, checkpoint=Checkpoint.from_dict({"epoch": 5}))
    newer = trainjob.get_checkpoint()
    assert newer is not None and newer.id == "1-2-1" and newer.to_dict() == {"epoch": 5}


def test_without_a_checkpoint_there_is_none(start_agent: StartAgent) -> None:
    start_agent()
    assert trainjob.get_checkpoint() is None


def test_a_dict_checkpoints_files_are_handed_over(start_agent: StartAgent) -> None:
    agent = start_agent()
    checkpoint = Checkpoint.from_dict({"a": 1})
    trainjob.report({}, checkpoint=checkpoint)
    assert agent.reports[0][0]["checkpoint"]["delete"] is True
    with pytest.raises(errors.CheckpointError, match="get_checkpoint"):
        checkpoint.to_dict()


def test_rank_state_goes_with_reports_and_comes_back(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent()
    rank_state.register("early", lambda: {"position": 3}, lambda saved: None)
    trainjob.report({}, checkpoint=Checkpoint.from_dict({}))
    link.disconnect()
    rank_state.clear()
    trainjob.session.calls.reset()
    agent.resume_from = agent.checkpoint_path("1-1-1")
    given: list[rank_state.Saved] = []
    rank_state.register("early", lambda: None, given.append)
    trainjob.get_checkpoint()
    rank_state.register("early", lambda: None, given.append)
    assert given == [rank_state.Saved({"position": 3}, rank=0, world_size=1)] * 2


def test_a_torn_rank_state_is_worded(start_agent: StartAgent, tmp_path: Path) -> None:
    states = tmp_path / "1-1-1" / ".trainjob"
    states.mkdir(parents=True)
    (states / "rank-0.state").write_bytes(b"\x80\x04torn")
    start_agent(resume_from=states.parent)
    with pytest.raises(errors.CheckpointError, match="state of rank 0"):
        trainjob.get_checkpoint()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (contract.FAIL_RANK_GONE, errors.RankGoneError),
        (contract.FAIL_TIMEOUT, errors.BarrierTimeoutError),
        (contract.FAIL_MISMATCH, errors.BarrierMismatchError),
        (contract.FAIL_STAGING, errors.CheckpointError),
        (contract.FAIL_DAMAGED, errors.CheckpointDamagedError),
        (contract.FAIL_STORAGE, errors.StorageError),
        ("something of a newer agent", errors.CollectiveError),
    ],
)
def test_the_agents_refusal_is_an_error_of_its_kind(
    start_agent: StartAgent, reason: str, kind: type[errors.CollectiveError]
) -> None:
    start_agent().refuse = {"reason": reason, "message": "rank 3 (pod a-3) exited with 1", "ranks": [3]}
    with pytest.raises(kind, match="rank 3") as caught:
        trainjob.barrier()
    assert type(caught.value) is kind and caught.value.ranks == [3]


def test_a_lost_agent_is_said(start_agent: StartAgent) -> None:
    agent = start_agent()
    trainjob.barrier()
    agent.drop_connections()
    with pytest.raises(errors.AgentLostError, match="closed the connection"):
        trainjob.barrier()


def test_an_agent_that_is_not_there_is_said(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    start_agent()
    monkeypatch.setenv(contract.ENV_AGENT_SOCKET, "/nowhere/socket")
    with pytest.raises(errors.AgentLostError, match="/nowhere/socket"):
        trainjob.barrier()


def test_broadcast_gives_rank_zeros_data_and_warns_when_large(start_agent: StartAgent) -> None:
    start_agent()
    assert trainjob.broadcast_from_rank_zero({"a": (1, 2)}) == {"a": (1, 2)}
    with pytest.warns(UserWarning, match=r"2\.0 MiB"):
        trainjob.broadcast_from_rank_zero(b"x" * 2 * 1024 * 1024)
    with pytest.raises(ValueError, match="cannot be pickled"):
        trainjob.broadcast_from_rank_zero(lambda: 1)


def test_threads_queue_up_and_keep_their_numbers(start_agent: StartAgent) -> None:
    agent = start_agent()
    threads = [threading.Thread(target=lambda: [trainjob.report({}) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert [report[0]["n"] for report in agent.reports] == list(range(1, 81))


def test_a_forked_child_is_refused_and_the_parent_goes_on(start_agent: StartAgent) -> None:
    start_agent()
    trainjob.barrier()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trainjob.barrier()
        except trainjob.NotInWorkerError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert f"forked child of rank process {os.getpid()}" in said
    trainjob.barrier()


def test_a_child_process_that_inherits_the_environment_is_refused(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_agent()
    monkeypatch.setenv(contract.ENV_RANK_PID, "1")
    with pytest.raises(trainjob.NotInWorkerError, match=r"started by rank 0 \(pid 1\)"):
        trainjob.report({})


def write_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def test_a_checkpoint_is_there_at_once_and_brings_what_is_asked_for(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(resume_from=write_files(tmp_path / "1-1-9", "a.bin", "deep/b.bin", ".trainjob/manifest.json"))
    found = trainjob.get_checkpoint()
    assert found is not None and found.step == 7
    assert found.files() == ["a.bin", "deep/b.bin"]
    assert repr(found) == "Checkpoint(id='1-1-9', uri=None)"
    with pytest.raises(errors.CheckpointError, match=r"no file '\.trainjob/manifest\.json'"):
        found.open(".trainjob/manifest.json")
    assert found.get_metadata() == {}
    assert agent.fetched == []
    for _ in range(2):
        with found.open("deep/b.bin") as file:
            assert file.read() == b"deep/b.bin"
    assert agent.fetched == [["deep/b.bin"]], "once"
    found.bring(["a.bin", "deep/b.bin", "a.bin"])
    assert agent.fetched == [["deep/b.bin"], ["a.bin"]]
    with pytest.raises(errors.CheckpointError, match=r"has no file 'c\.bin'"):
        found.bring(["a.bin", "c.bin"])
    with pytest.raises(errors.CheckpointError, match="is not changed any more"):
        found.set_metadata({"a": 1})
    assert len(agent.fetched) == 2


@pytest.mark.parametrize("use", ["path", "as_directory", "to_directory", "pickle"])
def test_whatever_needs_a_folder_brings_all_of_a_checkpoint(start_agent: StartAgent, tmp_path: Path, use: str) -> None:
    folder = write_files(tmp_path / "1-1-9", "a.bin", "deep/b.bin")
    agent = start_agent(resume_from=folder)
    found = trainjob.get_checkpoint()
    assert found is not None
    names = ["a.bin", "deep/b.bin"]
    if use == "path":
        own = found.path
    elif use == "as_directory":
        with found.as_directory() as path:
            own = path
    elif use == "to_directory":
        own = found.to_directory(str(tmp_path / "copy"))
    else:
        copy = pickle.loads(pickle.dumps(found))
        own = copy.path
        assert copy.files() == names
    assert {name: Path(own, name).read_bytes() for name in names} == {name: name.encode() for name in names}
    assert agent.fetched == [None]
    assert own != str(folder), "what the agent keeps is not handed out"


def test_a_checkpoint_that_outlived_its_attempt_says_so(start_agent: StartAgent, tmp_path: Path) -> None:
    agent = start_agent(resume_from=write_files(tmp_path / "1-1-9", "a.bin"))
    found = trainjob.get_checkpoint()
    assert found is not None
    (agent.root / "1-1-9.files.json").unlink()
    with pytest.raises(errors.CheckpointError, match="goes with the attempt"):
        found.files()


def test_of_a_folder_that_was_emptied_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied, used, here = tmp_path / "emptied", tmp_path / "used", tmp_path / "here"
    for folder in (emptied / "deep" / "er", used / "deep", here / "below"):
        folder.mkdir(parents=True)
    (used / "kept").write_text("by somebody else")
    monkeypatch.chdir(here / "below")
    for folder in (emptied, used, here):
        offering.remove_emptied(str(folder))
    assert not emptied.exists() and not (used / "deep").exists() and (used / "kept").exists()
    assert (here / "below").exists(), "the working folder stays"
    (here / "below").rmdir()
    offering.remove_emptied(str(here))
    assert not here.exists(), "and one that somebody removed is no obstacle"
    monkeypatch.chdir(tmp_path)


def test_the_experiment_has_the_name_that_was_given(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    start_agent()
    monkeypatch.setattr(session, "experiment_name", "My_Run=1")
    assert trainjob.get_context().get_experiment_name() == "My_Run=1"
    assert trainjob.get_context().get_trial_name() == "digits"


def test_the_agent_is_told_when_this_rank_could_step_and_when_it_did(start_agent: StartAgent) -> None:
    agent = start_agent()
    trainjob.get_checkpoint()
    trainjob.log({"loss": 1.0})
    trainjob.report({"loss": 0.5})
    trainjob.report({"loss": 0.25})
    ready, word = agent.begun
    assert (ready["first_step"], word["group"]) == (None, None)
    assert ready["restored"] == word["restored"] <= word["first_step"]


def test_a_connection_that_cannot_be_made_for_want_of_files_is_told_as_what_it_is(
    start_agent: StartAgent,
) -> None:
    start_agent()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(trainjob.AgentLostError, match=r"No connection .* can be made: .*Too many open files"):
            trainjob.get_context()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("method", "guarded", "said"),
    [
        ("spawn", False, "below `if __name__ == '__main__':`"),
        ("spawn", True, "in the rank's own process, not in its child processes"),
        ("fork", True, "in the rank's own process, not in its child processes"),
    ],
)
def test_a_child_of_a_rank_hears_what_is_wrong(tmp_path: Path, method: str, guarded: bool, said: str) -> None:
    guard = "if __name__ == '__main__':" if guarded else "if True:"
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, os, trainjob\n"
        f"{guard}\n"
        f"    if os.environ.setdefault({contract.ENV_RANK_PID!r}, str(os.getpid())) != str(os.getpid()):\n"
        "        trainjob.get_context()\n"
        f"    child = multiprocessing.get_context({method!r}).Process(target=trainjob.get_context)\n"
        "    child.start()\n    child.join()\n"
    )
    environment = {**os.environ, contract.ENV_AGENT_SOCKET: str(tmp_path / "none"), contract.ENV_RANK: "1"}
    environment.pop(contract.ENV_RANK_PID, None)
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert "was started by rank 1 (pid " in run.stderr and said in run.stderr, run.stderr
