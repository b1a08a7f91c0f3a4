"""An agent whose pod is told to end while its ranks train: how far they go on, and that nothing is lost or held up."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig, processes_with
from support.away import take_away
from support.tuned_agent import entry
from trainjob.agent.draining import ANSWER_S, LEAVE_S, Drain
from trainjob_api import contract

pytestmark = pytest.mark.slow

LOOP = """
import os, pathlib, signal, sys, tempfile, time, trainjob
c = trainjob.get_context()

def stop(*_):
    print("its own handler saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
step = 0
while True:
    step += 1
    time.sleep(0.02)
    if trainjob.broadcast_from_rank_zero(os.path.exists("save")):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, f"part-{c.rank}").write_bytes(os.urandom(5_000_000))
            trainjob.report({}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step)
    else:
        trainjob.report({}, step=step)
    if c.rank == 0:
        pathlib.Path("steps.new").write_text(str(step))
        os.replace("steps.new", "steps")
"""
WISH = "20260101T000000.000000"
KEEPS = entry(barriers__collectives__HOLD_S=10_000.0, draining__ANSWER_S=10_000.0)
"""Its ranks train on until the operator has answered, and at a boundary they stay until it has spoken: however long that
takes on a busy machine.
"""
FOR_EVER = entry(draining__ANSWER_S=10_000.0, draining__RANKS_DRAIN_S=10_000.0, draining__DRAIN_S=10_000.0)
"""An agent that waits where it should not does so for longer than a test may last."""
LONG = {"drain_s": 1000.0, "gone_s": 2000.0}


class Draining(Rig):
    """Some of its agents are told to end; the test is the operator."""

    def trains_on(self, steps: int = 3) -> None:
        """Until so many steps more are made."""
        before = self.step
        self.wait(lambda: self.step >= before + steps, "training goes on")

    @property
    def step(self) -> int:
        """The newest of rank 0."""
        path = self.work / "steps"
        return int((path.read_text() if path.exists() else "") or 0)

    def terminate(self, *slots: int) -> None:
        """SIGTERM; until they have said so."""
        for slot in slots:
            self.agents[slot].process.send_signal(signal.SIGTERM)
        for slot in slots:
            self.wait(lambda one=slot: self.report(one)["draining"], "said so")

    def tell_more(self, slot: int, **more: Any) -> None:
        """The word that it has, and this beside it."""
        self.coordinator.tell(slot, **{**self.coordinator.instructions[slot], **more})

    def left(self, slot: int) -> list[int]:
        """Processes of its pod."""
        return processes_with(f"{contract.ENV_POD_UID}={self.pod_uid(slot)}")


@pytest.mark.parametrize("leaving", [(0,), (1,), (0, 1)])
def test_the_ranks_reach_a_checkpoint_which_is_stored_before_the_agent_ends(
    tmp_path: Path, leaving: tuple[int, ...]
) -> None:
    store = tmp_path / "store"
    with Draining(tmp_path, script=LOOP, storage=store, entry=KEEPS) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(*leaving)
        rig.tell_more(0, boundary=WISH)
        for slot in leaving:
            rig.tell_more(slot, **LONG)
        rig.trains_on()
        (rig.work / "save").touch()
        rig.wait(lambda: rig.report(0)["boundary"] == WISH, "the boundary")
        rig.hold()
        assert [rig.exit_code(slot) for slot in leaving] == [contract.EXIT_REMOVED] * len(leaving)
        rig.wait(lambda: rig.ended(0, 1), "all are told of")
        assert {rank["kind"] for rank in rig.ranks().values()} == {contract.END_STOPPED}
        assert [rig.left(slot) for slot in leaving] == [[] for _ in leaving]
        rig.exit()
        assert [rig.exit_code(slot) for slot in (0, 1)] == [
            contract.EXIT_REMOVED if slot in leaving else 0 for slot in (0, 1)
        ]
        (manifest,) = store.glob("checkpoints/*/.trainjob/manifest.json")
        assert sorted(path.name for path in manifest.parents[1].glob("part-*")) == ["part-0", "part-1"]
        # No step after it was made.
        assert manifest.parents[1].name == f"1-1-{rig.step + 1}"


def test_an_operator_that_starts_anew_meanwhile_ends_nothing(tmp_path: Path) -> None:
    """It says `wait` until it knows everybody again."""
    with Draining(tmp_path, script=LOOP, storage=tmp_path / "store", entry=KEEPS) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(1)
        rig.tell_more(1, **LONG)
        rig.trains_on()
        before = dict(rig.coordinator.instructions[1])
        rig.coordinator.tell(1, do=contract.DO_WAIT)
        rig.wait(lambda: rig.report(1)["acknowledged"] == {"do": contract.DO_WAIT}, "it was heard")
        rig.trains_on(20)
        rig.coordinator.stop()
        rig.trains_on(20)
        rig.coordinator.start()
        rig.coordinator.tell(1, **before)
        rig.wait(lambda: rig.report(1)["acknowledged"] == before, "the word as it was")
        rig.trains_on()
        rig.hold()
        assert rig.exit_code(1) == contract.EXIT_REMOVED and rig.left(1) == []


@pytest.mark.parametrize("how", ["the operator ends the attempt", "the time is over", "it is taken back"])
def test_ranks_that_came_to_no_checkpoint_are_told_to_stop_before_they_are_killed(tmp_path: Path, how: str) -> None:
    waits = entry(draining__ANSWER_S=10_000.0, draining__LAST_RANKS_S=100.0)
    with Draining(tmp_path, script=LOOP, agents=1, entry=waits) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(0)
        rig.tell_more(0, **(LONG if how != "the time is over" else {"drain_s": 0.5, "gone_s": 200.0}))
        rig.wait(lambda: "drain_s" in (rig.report(0)["acknowledged"] or {}), "the word")
        if how == "the operator ends the attempt":
            rig.hold()
        elif how == "it is taken back":
            word = rig.coordinator.instructions[0]
            rig.coordinator.tell(0, **{name: word[name] for name in word if name not in LONG})
        assert rig.exit_code(0) == contract.EXIT_REMOVED
        assert "its own handler saved" in rig.text(0) and rig.left(0) == []


@pytest.mark.parametrize("operator", ["gone", "says nothing of it", "busy with others"])
def test_without_the_operators_word_ranks_are_told_to_stop(tmp_path: Path, operator: str) -> None:
    with Draining(tmp_path, script=LOOP, agents=1, storage=tmp_path / "store") as rig:
        rig.run(1)
        rig.trains_on()
        if operator == "gone":
            rig.coordinator.stop()
        elif operator == "busy with others":
            rig.coordinator.tell(0, do=contract.DO_WAIT)
        rig.agents[0].process.send_signal(signal.SIGTERM)
        assert rig.exit_code(0) == contract.EXIT_REMOVED
        assert "its own handler saved" in rig.text(0) and rig.left(0) == []


def test_a_word_that_comes_too_late_changes_nothing(tmp_path: Path) -> None:
    ignores = LOOP.replace("sys.exit(0)", "pass")
    with Draining(tmp_path, script=ignores, agents=1, entry=entry(draining__RANKS_DRAIN_S=2.0)) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(0)
        rig.wait(lambda: "its own handler saved" in rig.text(0) or rig.ended(0), "told to stop, if not killed by now")
        rig.tell_more(0, **LONG)
        assert rig.exit_code(0) == contract.EXIT_REMOVED and rig.left(0) == []


@pytest.mark.parametrize("word", [contract.DO_HOLD, contract.DO_EXIT, contract.DO_CHECK, contract.DO_RUN])
def test_the_end_of_the_attempt_is_no_wait(tmp_path: Path, word: str) -> None:
    """The job ends, is suspended or deleted, or another attempt has begun: told before or after SIGTERM."""
    with Draining(tmp_path, script=LOOP, agents=1, storage=tmp_path / "store", entry=FOR_EVER) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(0)
        if word == contract.DO_RUN:
            rig.tell_more(0, attempt=2)
        else:
            rig.coordinator.tell(0, do=word, exit_code=contract.EXIT_JOB_FAILED, attempt=1, reason="test")
        is_exit = word == contract.DO_EXIT
        assert rig.exit_code(0) == (contract.EXIT_JOB_FAILED if is_exit else contract.EXIT_REMOVED)
        assert "its own handler saved" in rig.text(0) and rig.left(0) == []
        assert rig.report(0)["attempt"] == 1


@pytest.mark.parametrize("when", ["in its join", "its ranks have ended", "told to hold", "told to exit"])
def test_where_no_rank_trains_nobody_waits_for_a_word(tmp_path: Path, when: str) -> None:
    script = LOOP if when != "its ranks have ended" else "import trainjob\ntrainjob.barrier()\n"
    store = tmp_path / "store"
    with Draining(tmp_path, script=script, storage=store, entry=FOR_EVER) as rig:
        if when == "in its join":
            rig.wait(lambda: all(slot in rig.coordinator.reports for slot in (0, 1)))
            rig.run_one(1, 1, 1, [0, 1])
            rig.wait(lambda: rig.report(1)["attempt"] == 1, "it asks to join")
        elif when == "its ranks have ended":
            rig.run(1)
            rig.wait(lambda: rig.ended(0, 1), "they end")
        else:
            rig.run(1)
            rig.trains_on()
            rig.hold() if when == "told to hold" else rig.exit()
        rig.agents[1].process.send_signal(signal.SIGTERM)
        assert rig.exit_code(1) in (contract.EXIT_OK, contract.EXIT_REMOVED) and rig.left(1) == []


def test_told_to_end_twice_is_told_once(tmp_path: Path) -> None:
    with Draining(tmp_path, script=LOOP, agents=1, storage=tmp_path / "store", entry=KEEPS) as rig:
        rig.run(1)
        rig.trains_on()
        rig.terminate(0)
        rig.tell_more(0, boundary=WISH, **LONG)
        rig.trains_on()
        rig.terminate(0)
        rig.trains_on(20)
        (rig.work / "save").touch()
        rig.wait(lambda: rig.report(0)["boundary"] == WISH, "the boundary")
        rig.terminate(0)
        rig.hold()
        assert rig.exit_code(0) == contract.EXIT_REMOVED and rig.left(0) == []
        assert len(list((tmp_path / "store").glob("checkpoints/*/.trainjob/manifest.json"))) == 1


def test_it_ends_before_a_short_grace_period_does_though_not_all_is_stored(tmp_path: Path) -> None:
    """Without that time it would wait for its storage for ever."""
    store = tmp_path / "store"
    with Draining(tmp_path, script=LOOP, agents=1, storage=store, entry=FOR_EVER) as rig:
        rig.run(1)
        rig.trains_on()
        take_away(store)
        (rig.work / "save").touch()
        rig.wait(lambda: rig.report(0)["uploads"], "something waits to be stored")
        rig.terminate(0)
        rig.tell_more(0, drain_s=0.1, gone_s=3.0)
        assert rig.exit_code(0) == contract.EXIT_REMOVED and rig.left(0) == []
        assert "not all that is staged could be stored in time" in rig.text(0)


def test_what_it_is_told_counts_from_sigterm_however_late_it_hears_of_it() -> None:
    drain = Drain(1, 100.0)
    word = contract.Instruction(do=contract.DO_RUN, attempt=1)
    assert drain.trains_until(1, word, 101.9) == 100.0 + ANSWER_S
    word.update(drain_s=20.0, gone_s=30.0)
    assert drain.trains_until(1, word, 101.9) == 120.0
    assert drain.end_by == 130.0 - LEAVE_S
    assert drain.trains_until(1, word, 120.0) is None


INFO = """
import os, pathlib, time, trainjob
c = trainjob.get_context()
assert trainjob.get_preemption_info() is None
while True:
    time.sleep(0.02)
    trainjob.report({})
    info = trainjob.get_preemption_info()
    pathlib.Path(f"info-{c.rank}").write_text(repr(info and (*info, info.seconds_left() == 0.0)))
"""


def test_all_ranks_hear_who_goes_and_by_when(tmp_path: Path) -> None:
    with Draining(tmp_path, script=INFO) as rig:

        def told(*texts: str) -> bool:
            files = [rig.work / f"info-{rank}" for rank in range(len(texts))]
            return all(file.exists() and file.read_text() == text for file, text in zip(files, texts, strict=True))

        rig.run(1)
        rig.wait(lambda: told("None", "None"), "training")
        rig.tell_more(0, boundary=WISH, leaving={"digits-1": 1})
        announced = (None, {"digits-1": [1]}, ["digits-1"], [1])
        rig.wait(lambda: told(repr((*announced, False, False)), repr((*announced, True, False))), "who goes")
        rig.tell_more(0, gone_at=1000.25)
        dated = (1000250, *announced[1:])
        rig.wait(lambda: told(repr((*dated, False, True)), repr((*dated, True, True))), "by when")
        word = rig.coordinator.instructions[0]
        rig.coordinator.tell(0, **{name: word[name] for name in word if name not in ("leaving", "gone_at")})
        rig.wait(lambda: told("None", "None"), "nobody any more")
