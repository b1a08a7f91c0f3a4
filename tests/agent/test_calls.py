"""Ranks call together through two real agents: what each learns when the others do not come."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.agent_rig import Rig
from trainjob_api import contract

pytestmark = pytest.mark.slow

HEAD = """
import json, os, signal, sys, time, trainjob
c = trainjob.get_context()
def said(call):
    begun = time.monotonic()
    try:
        print(json.dumps({"rank": c.rank, "got": call()}), flush=True)
    except Exception as error:
        print(json.dumps({"rank": c.rank, "error": type(error).__name__, "text": str(error), "after": time.monotonic() - begun}), flush=True)
"""


def answers(rig: Rig) -> dict[int, dict[str, Any]]:
    """What ranks printed by `said`."""
    lines = [line.split(" | ", 1)[1] for slot in rig.agents for line in rig.text(slot).splitlines() if " | {" in line]
    found = [json.loads(line) for line in lines]
    return {answer["rank"]: answer for answer in found}


def test_broadcast_barrier_and_stop(tmp_path: Path) -> None:
    script = (
        HEAD + "said(lambda: trainjob.broadcast_from_rank_zero({'from': c.rank, 'bulk': 'x' * "
        "300000})['from'])\ntrainjob.barrier()\n"
    )
    with Rig(tmp_path, script=script, processes=2) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait(lambda: {n: a["got"] for n, a in answers(rig).items()} == dict.fromkeys(range(4), 0))


@pytest.mark.parametrize(
    ("how", "words"),
    [("os._exit(0)", "ended with exit code 0"), ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)")],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_ends_while_others_wait_is_an_error_at_once(
    tmp_path: Path, how: str, words: str, missing: int
) -> None:
    script = (
        HEAD + f"trainjob.report({{}})\nif c.rank == {missing}:\n    time.sleep(0.3)\n    {how}\nsaid(lambda: "
        "trainjob.report({}))\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        waiting = 1 - missing
        rig.wait(lambda: waiting in answers(rig), "the other rank is told")
        answer = answers(rig)[waiting]
        assert answer["error"] == "RankGoneError"
        assert (
            f"rank {missing} {words}, but rank {waiting} waits for it in report() (collective 2 of this attempt)"
            in answer["text"]
        )


def test_a_rank_killed_inside_report_fails_those_who_wait_with_it(tmp_path: Path) -> None:
    script = HEAD + "if c.rank == 2:\n    time.sleep(600)\nsaid(lambda: trainjob.report({}))\n"
    with Rig(tmp_path, script=script, agents=3, env={contract.ENV_BARRIER_WARN_S: "0.3"}) as rig:
        rig.run(1)
        rig.wait_text(0, "ranks 0, 1 waited")
        rig.kill_rank(1)
        rig.wait(lambda: 0 in answers(rig), "rank 0 is told")
        assert "rank 1 was killed by signal 9" in answers(rig)[0]["text"]


def test_ranks_that_return_early_do_not_hurt_those_who_do_not_need_them(tmp_path: Path) -> None:
    script = HEAD + "trainjob.report({})\nif c.rank == 0:\n    time.sleep(0.5)\n    print('evaluated', flush=True)\n"
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(rig.completed, "completed")
        rig.wait_text(0, "evaluated")


def test_different_calls_are_named_on_both_sides(tmp_path: Path) -> None:
    script = (
        HEAD + "trainjob.report({})\ntrainjob.report({})\nsaid((lambda: trainjob.report({})) if c.rank == 0 else "
        "trainjob.barrier)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: len(answers(rig)) == 2, "both told")
        for answer in answers(rig).values():
            assert answer["error"] == "BarrierMismatchError"
            assert "rank 0 called report() as collective 3; rank 1 called barrier() as collective 3" in answer["text"]


def test_the_time_out_of_the_rank_counts(tmp_path: Path) -> None:
    script = HEAD + "if c.rank == 1:\n    time.sleep(600)\nsaid(lambda: trainjob.barrier(timeout_s=0.4))\n"
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait(lambda: 0 in answers(rig), "timed out")
        assert answers(rig)[0]["error"] == "BarrierTimeoutError"
        assert answers(rig)[0]["after"] > 0.3


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_ranks_are_named_with_their_stack_on_the_side_that_waits(tmp_path: Path, missing: int) -> None:
    script = (
        HEAD + f"def stuck_in_the_data_loader():\n    time.sleep(600)\nif c.rank == {missing}:\n    "
        "stuck_in_the_data_loader()\ntrainjob.report({})\n"
    )
    with Rig(tmp_path, script=script, env={contract.ENV_BARRIER_WARN_S: "0.5"}) as rig:
        rig.run(1)
        waiting = 1 - missing
        rig.wait_text(waiting, f"in report() (collective 1) for rank {missing}")
        rig.wait_text(waiting, "stuck_in_the_data_loader")
        rig.wait(lambda: rig.text(waiting).count(f"rank {waiting} waited") >= 2, "repeated")
        log = rig.work_dir(waiting) / "logs" / f"rank-{waiting}.log"
        # The first stack may be of a rank that has not come so far.
        rig.wait(lambda: "stuck_in_the_data_loader" in log.read_text(), "in the log of the rank that waits")
        rig.wait(lambda: f"\nrank {missing} is in " in log.read_text(), "it begins with the place")
        assert "as many batches" not in log.read_text()
        assert "stuck" not in rig.text(missing)


def test_a_stopped_rank_is_named_as_stopped(tmp_path: Path) -> None:
    script = HEAD + "if c.rank == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\ntrainjob.report({})\n"
    with Rig(tmp_path, script=script, env={contract.ENV_BARRIER_WARN_S: "0.5"}) as rig:
        rig.run(1)
        rig.wait_text(0, "the process is stopped")


def test_reports_go_on_without_a_coordinator_and_it_hears_of_the_end(tmp_path: Path) -> None:
    script = (
        HEAD + "print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nfor i in range(200): "
        "trainjob.report({'i': i})\nprint('all reported', flush=True)\n"
    )
    with Rig(tmp_path, script=script) as rig:
        rig.run(1)
        rig.wait_text(0, "up")
        rig.wait_text(1, "up")
        rig.coordinator.stop()
        (rig.work / "go").touch()
        rig.wait_text(0, "all reported")
        rig.wait_text(1, "all reported")
        rig.coordinator.start()
        rig.wait(rig.completed, "completed")
        # Another member's word that the run is complete may overtake that of rank 0's agent.
        rig.wait(lambda: rig.report(0)["progress"]["position"] == 200, "the last position")
        rig.wait(lambda: rig.ended(0, 1), "it hears of both ends")


def test_a_lower_transition_is_ignored(tmp_path: Path) -> None:
    with Rig(tmp_path, script=HEAD + "print('up', flush=True)\ntime.sleep(600)\n", agents=1) as rig:
        rig.coordinator.transition = 5
        rig.run(1)
        rig.wait_text(0, "up")
        rig.coordinator.transition = 4
        rig.hold()
        rig.kill_rank(0)
        rig.wait(lambda: rig.ended(0))
        assert rig.rank(0)["kind"] == contract.END_SIGNAL
        assert rig.report(0)["acknowledged"]["do"] == contract.DO_RUN
        rig.coordinator.transition = 6
        rig.coordinator.tell(0, do=contract.DO_HOLD, grace_s=1)
        rig.wait(lambda: rig.report(0)["acknowledged"]["do"] == contract.DO_HOLD)


def test_the_token_is_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with Rig(tmp_path, script="", agents=1, env={contract.ENV_TOKEN_FILE: str(token)}) as rig:
        rig.wait(lambda: rig.coordinator.headers.get(0, {}).get("Authorization") == "Bearer first")
        token.write_text("second\n")
        rig.run(1)
        rig.wait(lambda: rig.coordinator.headers[0]["Authorization"] == "Bearer second")


def test_log_rows_feed_progress(tmp_path: Path) -> None:
    script = HEAD + "for i in range(50): trainjob.log({'loss': i}, step=i)\ntrainjob.barrier()\ntime.sleep(600)\n"
    with Rig(tmp_path, script=script, command=[sys.executable, "-u", "train.py"]) as rig:
        rig.run(1)
        rig.wait(lambda: (rig.report(0).get("progress") or {}).get("step") == 49, "progress")
        assert rig.report(0)["progress"]["metrics"] == {"loss": 49}


def test_uneven_batches_are_told_from_the_stack_of_the_rank_that_waits_in_backward(tmp_path: Path) -> None:
    script = HEAD + (
        "import torch\ntrainjob.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "for _ in range(2 + c.rank):\n    model(torch.ones(1, 1)).sum().backward()\n"
        "trainjob.report({})\n"
    )
    with Rig(tmp_path, script=script, env={contract.ENV_BARRIER_WARN_S: "0.5"}) as rig:
        rig.run(1)
        rig.wait_text(0, "do all ranks have as many batches?")
        assert "for rank 1:" in rig.text(0) and "prepare_data_loader()" in rig.text(0)
