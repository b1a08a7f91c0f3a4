"""How ends are said."""

from __future__ import annotations

import pytest

from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core.phrases import how_rank_ended


def test_a_crash_is_told_by_its_signal_and_by_what_python_said_of_it() -> None:
    report: RankReport = {"rank": 0, "local_rank": 0, "pid": 1, "state": contract.RANK_ENDED, "signal": 11}
    assert how_rank_ended(contract.END_SIGNAL, report) == "was killed by SIGSEGV"
    report["error"] = {"type": "Fatal Python error", "message": "Segmentation fault", "traceback": ""}
    said = how_rank_ended(contract.END_SIGNAL, report)
    assert said == "was killed by SIGSEGV (Fatal Python error: Segmentation fault)"


def test_a_data_loader_that_was_killed_is_named_and_not_torchs_word_for_it() -> None:
    report: RankReport = {"rank": 0, "local_rank": 0, "pid": 1, "state": contract.RANK_ENDED, "exit_code": 1}
    report["error"] = {"type": contract.LOADER_KILLED, "message": "process 7 of it was killed by SIGKILL"}
    said = how_rank_ended(contract.END_SIGNAL, report)
    assert said == "lost its DataLoader: process 7 of it was killed by SIGKILL"


def test_a_script_that_refuses_its_arguments_says_which() -> None:
    report: RankReport = {"rank": 0, "local_rank": 0, "pid": 1, "state": contract.RANK_ENDED, "exit_code": 2}
    report["error"] = {"type": "SystemExit", "message": "train.py: error: unrecognized arguments: --lrr"}
    said = how_rank_ended(contract.END_EXIT, report)
    assert said == "ended with exit code 2: train.py: error: unrecognized arguments: --lrr"
    report["error"] = {"type": "SystemExit", "message": "", "traceback": "Traceback ..."}
    assert how_rank_ended(contract.END_EXIT, report) == "ended with exit code 2"


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ("Connection closed by peer [127.0.0.1]:21938", "a remote worker crashing"),
        ("Read error [127.0.0.1]:6375: Connection reset by peer", "a remote worker hanging or bugs in the application"),
    ],
)
def test_gloo_says_what_happened_without_its_sources_and_its_advice(what: str, advice: str) -> None:
    report: RankReport = {"rank": 0, "local_rank": 0, "pid": 1, "state": contract.RANK_ENDED, "exit_code": 1}
    report["error"] = {
        "type": "RuntimeError",
        "message": f"[/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] {what}. This is typically caused by {advice}. "
        "Check the logs of the remote worker before reporting an error. GLHF! \N{BEACH WITH UMBRELLA}",
    }
    said = how_rank_ended(contract.END_EXCEPTION, report)
    assert said == f"raised RuntimeError: {what}"
