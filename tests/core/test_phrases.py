"""How ends are said."""

from __future__ import annotations

from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core.phrases import how_rank_ended


def test_a_crash_is_told_by_its_signal_and_by_what_python_said_of_it() -> None:
    report: RankReport = {"rank": 0, "local_rank": 0, "pid": 1, "state": contract.RANK_ENDED, "signal": 11}
    assert how_rank_ended(contract.END_SIGNAL, report) == "was killed by SIGSEGV"
    report["error"] = {"type": "Fatal Python error", "message": "Segmentation fault", "traceback": ""}
    said = how_rank_ended(contract.END_SIGNAL, report)
    assert said == "was killed by SIGSEGV (Fatal Python error: Segmentation fault)"
